"""Faults of class rollout: one wrong line in the packing and the losses of frameworks for reinforcement learning."""

from __future__ import annotations

from functools import partial

from harness.core.cell.layout import Layout
from harness.core.outcomes import Lane
from harness.core.packing.options import DEFAULT_OPTIONS, PackingOptions
from harness.plan.faults.spec import FaultSpec

# The shipped matrix that defines a stack, and its name there. The last two need a clone beside the repository.
STACK = ("rl", "verl091")
STACK_OF_NEMO_RL = ("rl", "nemo_rl")
STACK_OF_MEGATRON_RL = ("rl_megatron", "main")
_CP, _PP, _DP = Layout(cp=2), Layout(pp=2), Layout(dp=2)

_spec = partial(
    FaultSpec,
    fault_class="rollout",
    stack=STACK[1],
    data_path="verl",
    options=PackingOptions(calculate_per_token_loss=False),  # with it, cells with cp above 1 fail
    lane=Lane.NUMERICS,
)
_nemo_rl = partial(_spec, stack=STACK_OF_NEMO_RL[1], data_path="nemo_rl", options=DEFAULT_OPTIONS)
_megatron_rl = partial(_spec, stack=STACK_OF_MEGATRON_RL[1], data_path="megatron_rl", options=DEFAULT_OPTIONS)
ROLLOUT: tuple[FaultSpec, ...] = (
    _spec(
        name="rollout-labels-rolled-after-the-cp-split",
        summary="labels of packed rollouts are shifted within the share of a cp rank, over its chunks and documents",
        modelled_on="verl-project/verl 10175743f (PR 4250): labels are rolled before the split over cp",
        layout=_CP,
        why="with cp 1 the last slots of documents are masked",
        lane=Lane.METADATA,
        checks=("tokens_placed",),
        where={"field": "log_probs"},
    ),
    _spec(
        name="rollout-log-probs-of-one-cp-rank",
        summary="log-probabilities that come from other cp ranks are those of the own rank",
        modelled_on="verl-project/verl 10175743f (PR 4250); NVIDIA-NeMo/RL allgather_cp_sharded_tensor",
        layout=_CP,
        why="with cp 1 nothing is gathered",
        lane=Lane.METADATA,
        checks=("tokens_placed",),
        where={"field": "log_probs"},
    ),
    _spec(
        name="rollout-loss-mask-not-shifted",
        summary="the loss mask weighs each token's log-probability with the mask of the token before",
        modelled_on="NVIDIA-NeMo/Megatron-Bridge 84e7948ea: loss masks of tokens, not of labels",
        layout=Layout(),
        why="one rank with masked tokens",
        checks=("parameter_gradients", "grad_norm"),
        where={"step": 0},
    ),
    _spec(
        name="rollout-loss-of-one-replica",
        summary="the loss is divided by the tokens of all replicas, but not multiplied by their number",
        modelled_on="NVIDIA/Megatron-LM 5946e24b37: the scale of a loss over replicas",
        layout=_DP,
        why="two replicas",
        checks=("parameter_gradients", "grad_norm"),
        where={"step": 0},
    ),
    _spec(
        name="rollout-stages-with-half-of-max-seqlen",
        summary="stages that embed no tokens get half of max_seqlen",
        modelled_on="A4: NVIDIA/Megatron-LM issue 4092, a max_seqlen that is wrong on later stages",
        layout=_PP,
        why="two stages",
        lane=Lane.METADATA,
        checks=("params_agree_plan",),
        where={"stage": 1, "field": "max_seqlen_q"},
    ),
    _nemo_rl(
        name="rollout-offsets-without-padding",
        summary="cu_seqlens_q_padded has the offsets of tokens, not those of padded rollouts",
        modelled_on="B2: NVIDIA/Megatron-LM 8e44748ee2; B16: NVIDIA-NeMo/RL 4d756fe39 (PR 3182)",
        layout=_CP,
        why="rollouts are padded for a split over context",
        lane=Lane.METADATA,
        checks=("params_agree_plan",),
        where={"stage": 0, "field": "cu_seqlens_q_padded"},
    ),
    _nemo_rl(
        name="rollout-loss-divided-by-cp-once-more",
        summary="what cancels Megatron's average over context ranks divides by cp twice",
        modelled_on="D4: NVIDIA/Megatron-LM 3bdcbbbe5d: a scale without cp",
        layout=_CP,
        why="cp 1 would hide the factor",
        checks=("parameter_gradients", "grad_norm"),
        where={"step": 0},
    ),
    _megatron_rl(
        name="rollout-prompts-in-the-loss",
        summary="the mask of generated tokens is not applied, so prompts count in the loss",
        modelled_on="D12: NVIDIA-NeMo/Megatron-Bridge 84e7948ea: loss masks of packed rows",
        layout=Layout(),
        why="one rank with prompts",
        checks=("token_count", "parameter_gradients", "grad_norm"),
        where={"step": 0},
    ),
    _megatron_rl(
        name="rollout-positions-run-on",
        summary="positions do not start again at each rollout of a bin",
        modelled_on="B12: NVIDIA-NeMo/Megatron-Bridge 9b51264b1 (PR 4532)",
        layout=Layout(),
        why="one rank with two rollouts in a bin",
        lane=Lane.METADATA,
        checks=("tokens_placed",),
        where={"field": "position_ids"},
    ),
)
