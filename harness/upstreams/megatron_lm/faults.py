"""Faults of one wrong line in Megatron-LM's packing scheduler and its packing of rollouts, in a stack that has them."""

from __future__ import annotations

from functools import partial

from harness.core.cell.layout import Layout
from harness.core.outcomes import Lane
from harness.core.packing.options import DEFAULT_OPTIONS
from harness.faults.spec import CP, ONE, STACK_OF_MEGATRON_RL, FaultSpec, rollout_spec
from harness.upstreams.megatron_lm.spec import SCHEDULER as SCHEDULER_PATH

_megatron_rl_spec = partial(
    rollout_spec, stack=STACK_OF_MEGATRON_RL[1], data_path="megatron_rl", options=DEFAULT_OPTIONS
)


MEGATRON_RL: tuple[FaultSpec, ...] = (
    _megatron_rl_spec(
        name="rollout-prompts-in-the-loss",
        summary="the mask of generated tokens is not applied, so prompts count in the loss",
        modelled_on="D12: NVIDIA-NeMo/Megatron-Bridge 84e7948ea: loss masks of packed rows",
        layout=ONE,
        why="one rank with prompts",
        checks=("token_count", "parameter_gradients", "grad_norm"),
        where={"step": 0},
    ),
    _megatron_rl_spec(
        name="rollout-positions-run-on",
        summary="positions do not start again at each rollout of a bin",
        modelled_on="B12: NVIDIA-NeMo/Megatron-Bridge 9b51264b1 (PR 4532)",
        layout=ONE,
        why="one rank with two rollouts in a bin",
        lane=Lane.METADATA,
        checks=("tokens_placed",),
        where={"field": "position_ids"},
    ),
)


_scheduler_spec = partial(
    FaultSpec, fault_class="metadata", stack=STACK_OF_MEGATRON_RL[1], data_path=SCHEDULER_PATH.name, lane=Lane.METADATA
)


SCHEDULER: tuple[FaultSpec, ...] = (
    _scheduler_spec(
        name="scheduler-squares-of-the-sum",
        summary="the scheduler returns the square of the sum of lengths instead of the sum of their squares",
        modelled_on="F4: NVIDIA/Megatron-LM 15a4ffc224, which counts FLOPs of scheduled documents",
        layout=ONE,
        why="one rank with more than one document in a step",
        checks=("workload",),
        where={"rank": 0, "step": 0, "field": "squares"},
    ),
    _scheduler_spec(
        name="scheduler-offsets-without-padding",
        summary="cu_seqlens has the offsets of tokens, while each document is padded for its split over cp",
        modelled_on="B2: NVIDIA/Megatron-LM 8e44748ee2; the workaround in get_batch_on_this_rank_for_sequence_packing",
        layout=CP,
        why="documents are padded for a split over context",
        checks=("params_agree_plan",),
        where={"stage": 0, "field": "cu_seqlens_q"},
    ),
    _scheduler_spec(
        name="scheduler-max-seqlen-on-tp-rank-0",
        summary="max_seqlen of scheduled documents is not broadcast, so tp ranks above 0 have a number of no meaning",
        modelled_on="A4: NVIDIA/Megatron-LM issue 4092, an uninitialised max_seqlen on tp ranks above 0",
        layout=Layout(tp=2),
        why="a tp rank that does not read the data itself",
        checks=("params_agree_plan",),
        where={"tp": 1, "field": "max_seqlen_q"},
    ),
)
