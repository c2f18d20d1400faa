"""Megatron-Bridge 0.4 to 0.6 and main of 2026-08: with full recompute, deepstack of Qwen3-VL gets no gradients.

    python deepstack_under_recompute.py     # in an environment with Megatron-Bridge

Qwen3VLVisionTransformerBlock._checkpointed_forward lets the checkpointed function return the features of deepstack in a
list. A reentrant checkpoint differentiates only tensors that the function returns directly: those in a list were
computed without gradients. So the mergers of deepstack never learn, and the tower lacks their share. Megatron's
checkpoint function needs a GPU; torch's own reentrant one, which differentiates the same outputs, takes its place. Exit
code 1 if the features need no gradient.
"""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import torch
import torch.utils.checkpoint
from megatron.bridge.models.qwen_vl.modelling_qwen3_vl import transformer_block


def checkpoint(function: Any, distribute: bool, *args: Any) -> Any:
    return torch.utils.checkpoint.checkpoint(function, *args, use_reentrant=True)


class Layer:
    layer_number = 1

    def __call__(self, *, hidden_states: torch.Tensor, **_: Any) -> tuple[torch.Tensor, None]:
        return 2 * hidden_states, None


def main() -> int:
    settings = SimpleNamespace(
        fp8=None, recompute_method="uniform", recompute_num_layers=1, distribute_saved_activations=False
    )
    block = SimpleNamespace(
        config=settings,
        num_layers_per_pipeline_rank=1,
        deepstack_visual_indexes=[0],
        deepstack_merger_list=[torch.nn.Linear(4, 4)],
        _get_layer=lambda index: Layer(),
    )
    forward = transformer_block.Qwen3VLVisionTransformerBlock._checkpointed_forward
    with patch.object(transformer_block.tensor_parallel, "checkpoint", checkpoint):
        hidden, features = forward(block, torch.ones(3, 4, requires_grad=True), *[None] * 6, False)
    print(f"hidden states need gradients: {hidden.requires_grad}; features of deepstack: {features[0].requires_grad}")
    return int(not features[0].requires_grad)


if __name__ == "__main__":
    sys.exit(main())
