"""Megatron-LM main of 2026-08: HybridModel computes the angles of rotary_interleaved for the other form.

    PYTHONPATH=Megatron-LM python hybrid_rotary_pairs.py

GPTModel gives config.rotary_interleaved to RotaryEmbedding, HybridModel does not. So a hybrid model repeats its
frequencies as halves, while attention turns neighbouring channels as pairs: the two of a pair get the angles of two
frequencies. Here these are 1 and 1/100, so at position 1 the angles must be 1, 1, 0.01, 0.01. Training goes on, with
positions that are not rotations. Exit code 1 if the two models differ.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from megatron.core import parallel_state
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
from megatron.core.models.gpt.gpt_model import GPTModel
from megatron.core.models.hybrid.hybrid_model import HybridModel
from megatron.core.transformer.spec_utils import ModuleSpec
from megatron.core.transformer.transformer_config import TransformerConfig


class NoLayers(torch.nn.Module):
    """In the place of the layers, which need Transformer Engine."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__()


def angles(build: Callable[[TransformerConfig], Any]) -> list[float]:
    """The angles of the four channels at position 1."""
    config = TransformerConfig(
        num_layers=1,
        hidden_size=4,
        num_attention_heads=1,
        kv_channels=4,
        rotary_interleaved=True,
        use_cpu_initialization=True,
    )
    embedding = build(config).rotary_pos_emb
    return [round(angle, 2) for angle in embedding(2)[1].flatten().tolist()]


def main() -> int:
    """Compare the embeddings of the two models, on one rank."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    parallel_state.initialize_model_parallel()
    torch.cuda.current_device = lambda: "cpu"  # type: ignore[assignment,return-value]
    rope: dict[str, Any] = {"vocab_size": 8, "max_sequence_length": 8, "position_embedding_type": "rope"}
    gpt = angles(lambda config: GPTModel(config, get_gpt_layer_local_spec(), **rope))
    hybrid = angles(lambda config: HybridModel(config, ModuleSpec(NoLayers), hybrid_layer_pattern="*", **rope))
    print(f"angles of the channels at position 1: GPTModel {gpt}, HybridModel {hybrid}")
    dist.destroy_process_group()
    return int(gpt != hybrid)


if __name__ == "__main__":
    sys.exit(main())
