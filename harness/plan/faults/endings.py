"""Faults of classes hang, crash and infrastructure: the cell does not complete."""

from __future__ import annotations

from harness.core.cell.layout import Layout
from harness.core.outcomes import Lane, Outcome
from harness.plan.faults.spec import HANG_DEADLINE_S, FaultSpec

_TP = Layout(tp=2, sp=True)
_PP = Layout(pp=2)

HANG: tuple[FaultSpec, ...] = (
    FaultSpec(
        name="rank-enters-a-collective-alone",
        fault_class="hang",
        summary="at step 1, tp rank 1 enters a collective that the other rank skips",
        modelled_on="D16: NVIDIA-NeMo/Megatron-Bridge 1d65d5756, ranks without images hung",
        layout=_TP,
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
        layout=_PP,
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
        layout=_TP,
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
        layout=Layout(),
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
        layout=Layout(cp=2),
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
        layout=_PP,
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
        layout=_PP,
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
        layout=_TP,
        why="two ranks, so that the one that was killed can be named",
        outcome=Outcome.ERROR,
        lane=Lane.METADATA,
        checks=("completeness",),
        where={"tp": 1, "rank": 1, "leg": "training", "step": 1},
        deadline_s=HANG_DEADLINE_S,
    ),
)
