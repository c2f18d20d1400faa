"""Megatron-Bridge 0.4 to 0.6 and main of 2026-08: under sequence parallelism Qwen3-VL loses gradients of deepstack.

    python deepstack_under_sp.py     # in an environment with Megatron-Bridge

With sequence parallelism every tensor-parallel rank adds the features of its own part of the row to the output of the
first layers (split_deepstack_embs). The features come from the vision tower, which is not sequence parallel: its last
layer is row parallel and expects the gradient of all features on every rank. For the embeddings upstream uses
scatter_to_sequence_parallel_region, whose backward gathers. For the features of deepstack it indexes, and no
collective in backward adds what other ranks have. So each rank's weights of these mergers learn from its part of the
row alone. Here the row of two ranks has two image tokens, one on each. Exit code 1 if a rank's gradient lacks a token.
"""

from __future__ import annotations

import sys

import torch
from megatron.bridge.models.qwen_vl.modelling_qwen3_vl.utils import split_deepstack_embs

RANKS = 2


def main() -> int:
    image = torch.tensor([[False, True, True, False]])  # two slots on each rank
    without = 0
    for rank in range(RANKS):
        features = torch.ones(2, 1, requires_grad=True)  # [image tokens, hidden], the same on both ranks
        _, (mine,) = split_deepstack_embs(image, [features], tp_size=RANKS, tp_rank=rank, sequence_parallel=True)
        mine.sum().backward()
        assert features.grad is not None
        found = features.grad.flatten().tolist()
        without += found.count(0.0)
        print(f"rank {rank}: gradient of the features {found}, expected [1.0, 1.0]")
    return int(without > 0)


if __name__ == "__main__":
    sys.exit(main())
