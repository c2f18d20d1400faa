"""Faults of class metadata in Megatron-LM's own packing scheduler: one wrong line of it."""

from __future__ import annotations

from functools import partial

from harness.core.cell.layout import Layout
from harness.core.data_paths.megatron_lm import SCHEDULER as PATH
from harness.core.outcomes import Lane
from harness.plan.faults.spec import FaultSpec
from harness.plan.faults.upstream.rollouts import STACK_OF_MEGATRON_RL

_spec = partial(
    FaultSpec, fault_class="metadata", stack=STACK_OF_MEGATRON_RL[1], data_path=PATH.name, lane=Lane.METADATA
)
SCHEDULER: tuple[FaultSpec, ...] = (
    _spec(
        name="scheduler-squares-of-the-sum",
        summary="the scheduler returns the square of the sum of lengths instead of the sum of their squares",
        modelled_on="F4: NVIDIA/Megatron-LM 15a4ffc224, which counts FLOPs of scheduled documents",
        layout=Layout(),
        why="one rank with more than one document in a step",
        checks=("workload",),
        where={"rank": 0, "step": 0, "field": "squares"},
    ),
    _spec(
        name="scheduler-offsets-without-padding",
        summary="cu_seqlens has the offsets of tokens, while each document is padded for its split over cp",
        modelled_on="B2: NVIDIA/Megatron-LM 8e44748ee2; the workaround in get_batch_on_this_rank_for_sequence_packing",
        layout=Layout(cp=2),
        why="documents are padded for a split over context",
        checks=("params_agree_plan",),
        where={"stage": 0, "field": "cu_seqlens_q"},
    ),
    _spec(
        name="scheduler-max-seqlen-on-tp-rank-0",
        summary="max_seqlen of scheduled documents is not broadcast, so tp ranks above 0 have a number of no meaning",
        modelled_on="A4: NVIDIA/Megatron-LM issue 4092, an uninitialised max_seqlen on tp ranks above 0",
        layout=Layout(tp=2),
        why="a tp rank that does not read the data itself",
        checks=("params_agree_plan",),
        where={"tp": 1, "field": "max_seqlen_q"},
    ),
)
