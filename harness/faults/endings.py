"""Faults of classes hang, crash and infrastructure, with which a cell does not complete, and of class throughput.

With those of class throughput all values are right, but a step takes too long.
"""

from __future__ import annotations

from harness.core.cell.timing import TimingConfig
from harness.core.outcomes import Lane, Outcome
from harness.core.packing.documents import DocumentsConfig
from harness.faults.spec import CP, HANG_DEADLINE_S, ONE, PP, TIMED_DEADLINE_S, TP, FaultSpec

HANG: tuple[FaultSpec, ...] = (
    FaultSpec(
        name="rank-enters-a-collective-alone",
        fault_class="hang",
        summary="at step 1, tp rank 1 enters a collective that the other rank skips",
        modelled_on="D16: NVIDIA-NeMo/Megatron-Bridge 1d65d5756, ranks without images hung",
        layout=TP,
        why="two ranks that wait for each other",
        lane=Lane.NUMERICS,
        checks=("ended",),
        where={"tp": 1, "rank": 1, "leg": "training", "step": 1},
        deadline_s=HANG_DEADLINE_S,
    ),
    FaultSpec(
        name="micro-batch-counts-differ",
        fault_class="hang",
        summary="stage 1 runs one micro-batch fewer than stage 0",
        modelled_on="E1: NVIDIA-NeMo/RL PR 748; M21: the number of packs is made a multiple of dp",
        layout=PP,
        why="two stages that must agree on the count",
        lane=Lane.METADATA,
        checks=("micro_batch_count", "ended"),
        where={"stage": 1, "rank": 1, "ranks": [1], "step": 0},
        deadline_s=HANG_DEADLINE_S,
    ),
)

CRASH: tuple[FaultSpec, ...] = (
    FaultSpec(
        name="exception-at-step-1",
        fault_class="crash",
        summary="tp rank 1 raises in the second step",
        modelled_on="A14, A15: a TypeError or NameError on a code path of one rank",
        layout=TP,
        why="two ranks, to distinguish the rank that failed first from the one that lost its peer",
        lane=Lane.NUMERICS,
        checks=("ended",),
        where={"tp": 1, "rank": 1, "leg": "training", "step": 1},
        deadline_s=HANG_DEADLINE_S,
    ),
    FaultSpec(
        name="rotary-table-of-garbage-length",
        fault_class="crash",
        summary="in the second step a rotary table is requested for a garbage max_seqlen, larger than any memory",
        modelled_on="A4: NVIDIA/Megatron-LM issue 4092, an uninitialised max_seqlen that sizes the rotary table",
        layout=ONE,
        why="one rank, whose memory is limited to its share",
        lane=Lane.NUMERICS,
        checks=("ended",),
        where={"rank": 0, "leg": "training", "step": 1},
        deadline_s=HANG_DEADLINE_S,
    ),
    FaultSpec(
        name="document-shorter-than-the-alignment",
        fault_class="crash",
        summary="the packer of cp rank 1 cannot expand a document shorter than 2 * cp",
        modelled_on="B7: NovaSky-AI/SkyRL PR 1407, NVIDIA-NeMo/Megatron-Bridge PR 5614",
        layout=CP,
        why="alignment starts at cp 2",
        lane=Lane.METADATA,
        checks=("completeness",),
        where={"cp": 1, "rank": 1, "leg": "metadata", "micro_batch": 0},
        deadline_s=HANG_DEADLINE_S,
    ),
    FaultSpec(
        name="native-crash-in-a-kernel",
        fault_class="crash",
        summary="the process of stage 1 aborts inside its first attention call",
        modelled_on="B22, E9: NVIDIA/TransformerEngine issue 2186, kernels that abort the process",
        layout=PP,
        why="two stages, so that the place can be named",
        lane=Lane.NUMERICS,
        checks=("ended",),
        where={"stage": 1, "rank": 1, "leg": "training", "step": 0},
        deadline_s=HANG_DEADLINE_S,
    ),
    FaultSpec(
        name="static-pipeline-shapes",
        fault_class="crash",
        summary="stages exchange tensors of seq_length although packed rows differ in length",
        modelled_on="E2: NVIDIA-NeMo/Megatron-Bridge PR 2825, PR 5440",
        layout=PP,
        why="one hop between two stages",
        lane=Lane.NUMERICS,
        checks=("ended",),
        where={"stage": 1, "leg": "training", "step": 0, "micro_batch": 0},
        deadline_s=HANG_DEADLINE_S,
    ),
)

INFRASTRUCTURE: tuple[FaultSpec, ...] = (
    FaultSpec(
        name="rank-killed-from-outside",
        fault_class="infrastructure",
        summary="tp rank 1 is killed by SIGKILL, as by the out-of-memory killer: not a failure of the code under test",
        modelled_on="node failure, preemption, out of memory",
        layout=TP,
        why="two ranks, so that the one that was killed can be named",
        outcome=Outcome.ERROR,
        lane=Lane.METADATA,
        checks=("completeness",),
        where={"tp": 1, "rank": 1, "leg": "training", "step": 1},
        deadline_s=HANG_DEADLINE_S,
    ),
)


# Few documents: too few to slow down the rotary function of megatron-core 0.19 by themselves.
_SLOPE = TimingConfig(documents=(2, 8))

THROUGHPUT: tuple[FaultSpec, ...] = (
    FaultSpec(
        name="rotary-applied-document-by-document",
        fault_class="throughput",
        summary="a pack is rotated once for each of its documents; losses and gradients are right",
        modelled_on="F1: NovaSky-AI/SkyRL PR 274, 78 -> 105 ms; NVIDIA/Megatron-LM d30e165203",
        layout=ONE,
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
        layout=ONE,
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
        layout=ONE,
        why="one rank, interleaved with its clean twin: packed and unpacked rows are equally slow",
        documents=DocumentsConfig(mode="file", lengths=(31, 8, 25, 17, 12, 30, 5, 28)),
        timing=TimingConfig(turns="attention-by-a-slower-kernel"),
        deadline_s=TIMED_DEADLINE_S,
        lane=Lane.THROUGHPUT,
        checks=("slower_than",),
        where={"leg": "timing", "base": "default"},
    ),
)
