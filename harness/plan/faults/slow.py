"""Faults of class throughput: all values are right, but a step takes too long."""

from __future__ import annotations

from harness.core.cell.layout import Layout
from harness.core.cell.timing import TimingConfig
from harness.core.outcomes import Lane
from harness.core.packing.documents import DocumentsConfig
from harness.plan.faults.spec import TIMED_DEADLINE_S, FaultSpec

# Few documents: too few to slow down the rotary function of megatron-core 0.19 by themselves.
_SLOPE = TimingConfig(documents=(2, 8))

THROUGHPUT: tuple[FaultSpec, ...] = (
    FaultSpec(
        name="rotary-applied-document-by-document",
        fault_class="throughput",
        summary="a pack is rotated once for each of its documents; losses and gradients are right",
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
        summary="attention runs once more for each slot of a packed row, as with cu_seqlens padded to bin_size entries",
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
        why="one rank, interleaved with its clean twin: packed and unpacked rows are equally slow",
        documents=DocumentsConfig(mode="file", lengths=(31, 8, 25, 17, 12, 30, 5, 28)),
        timing=TimingConfig(turns="attention-by-a-slower-kernel"),
        deadline_s=TIMED_DEADLINE_S,
        lane=Lane.THROUGHPUT,
        checks=("slower_than",),
        where={"leg": "timing", "base": "default"},
    ),
)
