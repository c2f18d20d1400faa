"""megatron-core 0.19 and main of 2026-08: HybridModel does not split a padding mask under sequence parallelism.

    python hybrid_padding_mask.py     # or with PYTHONPATH=Megatron-LM

With sequence parallelism every tensor-parallel rank gets its part of the tokens. GPTModel splits the padding mask of
routers in the same way (GPTModel._preprocess). HybridModel.forward passes it on whole, so a router with an auxiliary
loss raises: the mask has tp times as many tokens as the router. Here the first of two ranks has 4 of 8 tokens. Exit
code 1 if the decoder gets a mask of another length.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from contextlib import suppress
from types import SimpleNamespace
from typing import Any

import torch
from megatron.core.models.hybrid.hybrid_model import HybridModel


class Config(SimpleNamespace):
    """What forward reads of a configuration: sequence parallelism is on, everything else off."""

    def __getattr__(self, name: str) -> bool:
        return name == "sequence_parallel"


class ReachedError(Exception):
    """The decoder has its arguments."""


def main() -> int:
    given: dict[str, Any] = defaultdict(lambda: None)

    def decoder(**arguments: Any) -> None:
        given.update(arguments)
        raise ReachedError

    def embedding(input_ids: torch.Tensor, position_ids: torch.Tensor) -> torch.Tensor:
        return torch.zeros(input_ids.shape[1] // 2, 1, 16)  # [tokens of this rank, rows, hidden], as upstream scatters

    embedding.scatter_to_sequence_parallel = True  # type: ignore[attr-defined]
    model = SimpleNamespace(
        config=Config(), pre_process=True, embedding=embedding, decoder=decoder, position_embedding_type="none"
    )
    row = torch.arange(8)[None]
    with suppress(ReachedError):
        HybridModel.forward(model, row, row, None, padding_mask=row > 5)
    tokens, masked = len(given["hidden_states"]), given["padding_mask"].shape[1]
    print(f"the decoder gets {tokens} tokens and a padding mask of {masked}")
    return int(tokens != masked)


if __name__ == "__main__":
    sys.exit(main())
