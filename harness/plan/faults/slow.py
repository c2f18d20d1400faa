"""Faults of class throughput: every number is right, and the time is not."""

from __future__ import annotations

from harness.plan.faults.spec import FaultSpec
from harness.words.layout import Layout
from harness.words.outcomes import Lane
from harness.words.timing import TimingConfig

# Few documents: by so many the rotary function of megatron-core 0.19 is not yet slowed down, by the fault it is.
_SLOPE = TimingConfig(documents=(2, 8))

THROUGHPUT: tuple[FaultSpec, ...] = (
    FaultSpec(
        name="rotary-applied-document-by-document",
        fault_class="throughput",
        summary="rotary positions of a pack are computed once for each document; losses and gradients are right",
        modelled_on="F1: NovaSky-AI/SkyRL PR 274, 78 -> 105 ms; NVIDIA/Megatron-LM d30e165203",
        layout=Layout(),
        why="one rank; packs of 2 and of 8 documents",
        timing=_SLOPE,
        lane=Lane.THROUGHPUT,
        checks=("segment_slope",),
        where={"leg": "timing", "part": "rotary"},
    ),
    FaultSpec(
        name="attention-over-ghost-documents",
        fault_class="throughput",
        summary="attention runs once more for each slot of a packed row, as for cu_seqlens filled up to its size",
        modelled_on="NVIDIA/Megatron-LM ce2cc40707: cu_seqlens padded with bin_size entries",
        layout=Layout(),
        why="one rank; its documents packed and one per row",
        timing=TimingConfig(unpacked=True),
        lane=Lane.THROUGHPUT,
        checks=("packed_slower",),
        where={"leg": "timing"},
    ),
)
