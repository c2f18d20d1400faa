"""Rows of random tokens, without a packing plan."""

from __future__ import annotations

import torch

from harness.oracle.rows import Stream


def stream(vocab: int, segments: tuple[int, ...], seed: int = 1) -> Stream:
    """One row with a document in each segment; every label counts."""
    slots = sum(segments)
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randint(0, vocab, (slots + 1,), generator=generator)
    return Stream(
        tokens=tokens[:-1],
        labels=tokens[1:],
        mask=torch.ones(slots, dtype=torch.float64),
        positions=torch.cat([torch.arange(size) for size in segments]),
        documents=torch.cat([torch.full((size,), index) for index, size in enumerate(segments)]),
        segments=segments,
        rows=(slots,),
        shares=(torch.arange(slots),),
        counted=torch.ones(slots, dtype=torch.bool),
    )
