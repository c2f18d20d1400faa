"""Faults of class throughput: every number is right, and the time is not."""

from __future__ import annotations

from harness.core.cell.layout import Layout
from harness.core.cell.timing import TimingConfig
from harness.core.outcomes import Lane
from harness.core.packing.documents import DocumentsConfig
from harness.plan.faults.spec import TIMED_DEADLINE_S, FaultSpec

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
        deadline_s=TIMED_DEADLINE_S,
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
        deadline_s=TIMED_DEADLINE_S,
        lane=Lane.THROUGHPUT,
        checks=("packed_slower",),
        where={"leg": "timing"},
    ),
    FaultSpec(
        name="attention-by-a-slower-kernel",
        fault_class="throughput",
        summary="attention to every row takes several times as long, however many documents the row has",
        modelled_on="F2: NVIDIA-NeMo/Megatron-Bridge 529020e6a (PR 2039), arguments that choose a slower kernel",
        layout=Layout(),
        why="one rank, in turns with its clean twin: beside itself it is slow alike, packed or not",
        documents=DocumentsConfig(mode="file", lengths=(31, 8, 25, 17, 12, 30, 5, 28)),
        timing=TimingConfig(turns="attention-by-a-slower-kernel"),
        deadline_s=TIMED_DEADLINE_S,
        lane=Lane.THROUGHPUT,
        checks=("slower_than",),
        where={"leg": "timing", "base": "default"},
    ),
)
