"""Faults of one wrong line in NeMo-RL's packing and loss, in a stack that has it."""

from __future__ import annotations

from functools import partial

from harness.core.outcomes import Lane
from harness.core.packing.options import DEFAULT_OPTIONS
from harness.faults.spec import CP, STACK_OF_NEMO_RL, FaultSpec, rollout_spec

_nemo_rl_spec = partial(rollout_spec, stack=STACK_OF_NEMO_RL[1], data_path="nemo_rl", options=DEFAULT_OPTIONS)


NEMO_RL: tuple[FaultSpec, ...] = (
    _nemo_rl_spec(
        name="rollout-offsets-without-padding",
        summary="cu_seqlens_q_padded has the offsets of tokens, not those of padded rollouts",
        modelled_on="B2: NVIDIA/Megatron-LM 8e44748ee2; B16: NVIDIA-NeMo/RL 4d756fe39 (PR 3182)",
        layout=CP,
        why="rollouts are padded for a split over context",
        lane=Lane.METADATA,
        checks=("params_agree_plan",),
        where={"stage": 0, "field": "cu_seqlens_q_padded"},
    ),
    _nemo_rl_spec(
        name="rollout-loss-divided-by-cp-once-more",
        summary="what cancels Megatron's average over context ranks divides by cp twice",
        modelled_on="D4: NVIDIA/Megatron-LM 3bdcbbbe5d: a scale without cp",
        layout=CP,
        why="cp 1 would hide the factor",
        checks=("parameter_gradients", "grad_norm"),
        where={"step": 0},
    ),
)
