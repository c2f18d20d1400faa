"""Faults of one wrong line in verl's packing and loss, in a stack that has it."""

from __future__ import annotations

from harness.core.outcomes import Lane
from harness.faults.spec import CP, DP, ONE, PP, FaultSpec, rollout_spec

VERL: tuple[FaultSpec, ...] = (
    rollout_spec(
        name="rollout-labels-rolled-after-the-cp-split",
        summary="labels of packed rollouts are shifted within the share of a cp rank, over its chunks and documents",
        modelled_on="verl-project/verl 10175743f (PR 4250): labels are rolled before the split over cp",
        layout=CP,
        why="with cp 1 the last slots of documents are masked",
        lane=Lane.METADATA,
        checks=("tokens_placed",),
        where={"field": "log_probs"},
    ),
    rollout_spec(
        name="rollout-log-probs-of-one-cp-rank",
        summary="log-probabilities that come from other cp ranks are those of the own rank",
        modelled_on="verl-project/verl 10175743f (PR 4250); NVIDIA-NeMo/RL allgather_cp_sharded_tensor",
        layout=CP,
        why="with cp 1 nothing is gathered",
        lane=Lane.METADATA,
        checks=("tokens_placed",),
        where={"field": "log_probs"},
    ),
    rollout_spec(
        name="rollout-loss-mask-not-shifted",
        summary="the loss mask weighs each token's log-probability with the mask of the token before",
        modelled_on="NVIDIA-NeMo/Megatron-Bridge 84e7948ea: loss masks of tokens, not of labels",
        layout=ONE,
        why="one rank with masked tokens",
        checks=("token_count", "parameter_gradients", "grad_norm"),
        where={"step": 0},
    ),
    rollout_spec(
        name="rollout-loss-of-one-replica",
        summary="the loss is divided by the tokens of all replicas, but not multiplied by their number",
        modelled_on="NVIDIA/Megatron-LM 5946e24b37: the scale of a loss over replicas",
        layout=DP,
        why="two replicas",
        checks=("token_count", "parameter_gradients", "grad_norm"),
        where={"step": 0},
    ),
    rollout_spec(
        name="rollout-loss-divided-by-a-token-more",
        summary="the loss is divided by one token more than count in it",
        modelled_on="THUDM/slime loss_function: clamp_min(loss_mask.sum(), 1), a sample without tokens counts one",
        layout=ONE,
        why="one rank; the loss returns no number of tokens, so only its value shows it",
        checks=("token_count", "parameter_gradients", "grad_norm"),
        where={"step": 0},
    ),
    rollout_spec(
        name="rollout-stages-with-half-of-max-seqlen",
        summary="stages that embed no tokens get half of max_seqlen",
        modelled_on="A4: NVIDIA/Megatron-LM issue 4092, a max_seqlen that is wrong on later stages",
        layout=PP,
        why="two stages",
        lane=Lane.METADATA,
        checks=("params_agree_plan",),
        where={"stage": 1, "field": "max_seqlen_q"},
    ),
)
