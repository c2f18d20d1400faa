"""Faults of one wrong line in upstream's own code, in stacks that have it.

Class trainer: the training code of Megatron-Bridge. Class rollout: packing and losses of frameworks for reinforcement
learning. Class metadata: Megatron-LM's packing scheduler. Class tests: upstream's unit tests find another count than
the matrix says.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from harness.core.cell.arguments import Arguments, merged
from harness.core.cell.layout import Layout
from harness.core.data_paths.megatron_lm import SCHEDULER as SCHEDULER_PATH
from harness.core.data_paths.own import UpstreamTests
from harness.core.outcomes import Lane
from harness.core.packing.documents import mix
from harness.core.packing.options import DEFAULT_OPTIONS, PackingOptions
from harness.plan.faults.spec import CP, DP, MODEL, ONE, PP, TP, TRAIN, FaultSpec

# The shipped matrix that defines a stack, and its name there. The last three need a clone beside the repository.
STACK_OF_TRAINERS = ("trainer_bridge", "bridge062")
STACK_OF_VERL = ("rl", "verl091")
STACK_OF_NEMO_RL = ("rl", "nemo_rl")
STACK_OF_MEGATRON_RL = ("rl_megatron", "main")
STACK_OF_UNIT_TESTS = ("upstream_tests", "bridge06")
_CLIPPED = Arguments(merged({"clip_grad": ("0.1",)}))

_trainer_spec = partial(
    FaultSpec,
    fault_class="trainer",
    trainer="bridge",
    stack=STACK_OF_TRAINERS[1],
    data_path="bridge_offline",
    documents=mix("uncut", TRAIN.seq_length, 2),
    global_batch=16,
    lane=Lane.NUMERICS,
)
TRAINER: tuple[FaultSpec, ...] = (
    _trainer_spec(
        name="loss-function-times-cp",
        summary="the loss function multiplies its sum by cp: gradients and the reported loss are cp times too large",
        modelled_on="NVIDIA/Megatron-LM 3bdcbbbe5d: the scaling factor of DDP with context parallelism",
        layout=CP,
        why="cp 1 would hide the factor",
        checks=("parameter_gradients", "grad_norm", "reported"),
        where={"step": 0, "ratio": "x cp"},
        also={"reported": {"step": 0, "metric": "loss"}},
    ),
    _trainer_spec(
        name="loss-function-without-its-mask",
        summary="the loss function sums over all tokens, those of prompts and padding too",
        modelled_on="NVIDIA-NeMo/Megatron-Bridge 84e7948ea: loss masks",
        layout=ONE,
        why="one rank with a masked document",
        checks=("parameter_gradients", "grad_norm", "reported"),
        where={"step": 0},
        also={"reported": {"step": 0, "metric": "loss"}},
    ),
    _trainer_spec(
        name="token-count-of-one-replica",
        summary="gradients are divided by twice the tokens of the own replica, not by those of all",
        modelled_on="NVIDIA/Megatron-LM 5946e24b37: the scale of a loss per token with context parallelism",
        layout=DP,
        why="two replicas with different numbers of tokens",
        checks=("replica_gradients", "parameter_gradients"),
        where={"step": 0},
    ),
    _trainer_spec(
        name="norm-gradients-not-summed-over-tp",
        summary="gradients of norms are not summed over tp: every rank has those of its part of the sequence",
        modelled_on="NVIDIA/Megatron-LM issue 7452, finding 11: the gradient of a norm is not summed over tp",
        layout=TP,
        why="two tp ranks with sequence parallel",
        checks=("replica_gradients", "parameter_gradients"),
        where={"step": 0},
    ),
    _trainer_spec(
        name="tied-embedding-gradients-not-summed",
        summary="the first stage updates the shared embedding without the gradient of the output layer",
        modelled_on="NVIDIA/Megatron-LM 714c24a7e8: tied parameters",
        layout=PP,
        why="two stages that share a weight",
        model=replace(MODEL, tied=True),
        checks=("parameter_gradients",),
        where={"step": 0},
    ),
    _trainer_spec(
        name="micro-batch-left-out",
        summary="every step runs one micro-batch fewer than it has",
        modelled_on="no known bug; a step that disagrees with its data",
        layout=ONE,
        why="one rank",
        lane=Lane.METADATA,
        checks=("micro_batch_count",),
        where={"step": 0},
    ),
    _trainer_spec(
        name="clipped-by-the-norm-of-one-rank",
        summary="each stage clips its gradients by its own norm: losses stay almost the same",
        modelled_on="NVIDIA/Megatron-LM a72c0278e6: a gradient norm without the weights of other tp ranks",
        layout=PP,
        why="two stages, whose gradients have different norms",
        args=_CLIPPED,
        checks=("first_update",),
        where={"step": 0},
    ),
    _trainer_spec(
        name="first-update-skipped-on-one-rank",
        summary="tp rank 1 has a learning rate of 0 in the first step",
        modelled_on="no known bug; ranks that disagree on whether a step is skipped",
        layout=TP,
        why="two tp ranks",
        checks=("first_update",),
        where={"step": 0},
    ),
    _trainer_spec(
        name="second-update-skipped-on-one-rank",
        summary="tp rank 1 has a learning rate of 0 in the last step, which no later step shows",
        modelled_on="no known bug; ranks that disagree on whether a step is skipped",
        layout=TP,
        why="two tp ranks, and an evaluation after the last step",
        eval_interval=2,
        checks=("trained_weights", "evaluation"),
        where={"step": 1},
        also={"evaluation": {"after": 2}},
    ),
    _trainer_spec(
        name="weights-not-gathered-after-an-update",
        summary="with the distributed optimizer, replicas do not exchange the weights that they have updated",
        modelled_on="NVIDIA/Megatron-LM issue 950: a forward with the previous step's weights, not gathered yet",
        layout=DP,
        why="two replicas that share the optimizer",
        axes={"distributed_optimizer": "on"},
        checks=("document_loss", "step_loss", "grad_norm"),
        where={"step": 1},
    ),
    _trainer_spec(
        name="learning-rate-halved",
        summary="the schedule gives half of the learning rate",
        modelled_on="no known bug; another schedule than the one asked for",
        layout=ONE,
        why="one rank",
        checks=("first_update", "reported"),
        where={"step": 0},
        also={"reported": {"step": 0, "metric": "learning rate"}},
    ),
    _trainer_spec(
        name="reported-loss-of-one-replica",
        summary="each replica reports the loss of only its rows; training is right",
        modelled_on="NVIDIA/Megatron-LM 9900d9ae87: an evaluation loss that is not summed over ranks; here in training",
        layout=DP,
        why="two replicas",
        checks=("reported",),
        where={"step": 0, "metric": "loss"},
    ),
    _trainer_spec(
        name="reported-norm-times-tp",
        summary="the reported gradient norm is tp times too large; training is right",
        modelled_on="NVIDIA/Megatron-LM a72c0278e6: the norm that is reported is not that of all weights",
        layout=TP,
        why="two tp ranks",
        checks=("reported",),
        where={"step": 0, "metric": "gradient norm"},
    ),
    _trainer_spec(
        name="samples-counted-twice",
        summary="consumed samples are counted twice, so that a resumed run would skip data; training is right",
        modelled_on="no known bug; a counter from which a resumed run continues",
        layout=ONE,
        why="one rank",
        checks=("reported",),
        where={"step": 0, "metric": "number of consumed samples"},
    ),
    _trainer_spec(
        name="updates-counted-from-zero",
        summary="a resumed run loads its moments, but not how many updates they are of",
        modelled_on="no known bug; Adam scales its first updates by their number",
        layout=DP,
        why="two replicas that share the optimizer",
        axes={"distributed_optimizer": "on", "resume": "same"},
        checks=("resumed",),
        where={"part": "resumed", "step": 1},
    ),
    _trainer_spec(
        name="updates-counted-from-zero-in-another-layout",
        summary="the same where a run of two tp ranks continues with two stages",
        modelled_on="no known bug; Adam scales its first updates by their number",
        layout=TP,
        why="two ranks that are split in two ways",
        axes={"resume": "tp1-pp2"},
        checks=("resumed",),
        where={"part": "resumed", "step": 1},
    ),
    _trainer_spec(
        name="schedule-not-loaded",
        summary="a resumed run begins the schedule of the learning rate again",
        modelled_on="no known bug; a constant rate hides it",
        layout=ONE,
        why="one rank",
        axes={"resume": "same"},
        checks=("resumed",),
        where={"part": "resumed", "step": 1},
    ),
    _trainer_spec(
        name="random-state-not-loaded",
        summary="a resumed run draws other random numbers in Python's generator",
        modelled_on="no known bug; data sets draw from it",
        layout=ONE,
        why="one rank",
        axes={"resume": "same"},
        checks=("resumed",),
        where={"part": "resumed", "step": 1},
    ),
    _trainer_spec(
        name="samples-not-loaded",
        summary="a resumed run reads the data from its beginning again",
        modelled_on="no known bug; the counter from which a resumed run continues",
        layout=ONE,
        why="one rank",
        axes={"resume": "same"},
        lane=Lane.METADATA,
        checks=("tokens_placed",),
        where={"part": "resumed", "step": 1},
    ),
    _trainer_spec(
        name="evaluated-samples-not-loaded",
        summary="a resumed run evaluates on the documents of the first evaluation again; training is right",
        modelled_on="no known bug; the counter from which evaluations of a resumed run continue",
        layout=ONE,
        why="one rank, with an evaluation before the checkpoint and one after it",
        eval_interval=1,
        axes={"resume": "same"},
        checks=("evaluation", "resumed"),
        where={"part": "resumed", "after": 2},
        also={"resumed": {"part": "resumed", "step": 2}},
    ),
    _trainer_spec(
        name="packs-counted-as-one-document",
        summary="FLOPs are counted as if every pack were one document; training is right",
        modelled_on="NVIDIA-NeMo/Megatron-Bridge issue 4161: with cp above 1 packs count as one document",
        layout=ONE,
        why="one rank with several documents in a pack",
        checks=("reported",),
        where={"step": 0, "metric": "sum of squared lengths"},
    ),
    _trainer_spec(
        name="tokens-counted-on-one-replica",
        summary="each replica counts the tokens of only its rows; training is right",
        modelled_on="NVIDIA/Megatron-LM main of 2026-08: tokens are counted once per model chunk; here too few",
        layout=DP,
        why="two replicas",
        checks=("reported",),
        where={"step": 0, "metric": "number of packed tokens"},
    ),
    _trainer_spec(
        name="printed-loss-with-that-of-the-step-before",
        summary="sums of losses are not reset, so a printed line has the losses of all steps; training is right",
        modelled_on="NVIDIA/Megatron-LM main of 2026-08: with a log interval of 1, the second line is about two steps",
        layout=ONE,
        why="one rank and a second step",
        checks=("printed",),
        where={"step": 1, "metric": "lm loss"},
    ),
    _trainer_spec(
        name="replica-reads-the-rows-of-another",
        summary="the sampler gives both replicas the rows of the first",
        modelled_on="no known bug; the rank that a sampler deals rows to",
        layout=DP,
        why="two replicas",
        lane=Lane.METADATA,
        checks=("tokens_placed", "params_agree_plan"),  # the offsets of the first rows differ by copies alone
        where={"dp": 1, "step": 0},
    ),
    _trainer_spec(
        name="loss-mask-of-tokens-not-of-labels",
        summary="documents that are not packed have the loss mask of their tokens, one position before that of labels",
        modelled_on="NVIDIA-NeMo/Megatron-Bridge 84e7948ea: loss masks",
        layout=ONE,
        why="one rank",
        data_path="bridge_long",
        lane=Lane.METADATA,
        checks=("tokens_placed",),
        where={"step": 0},
    ),
    _trainer_spec(
        name="later-stages-without-metadata",
        summary="forward_step passes packed_seq_params to the first stage only",
        modelled_on="NVIDIA/Megatron-LM issue 4092: middle stages got no cu_seqlens",
        layout=PP,
        why="a stage after the first",
        lane=Lane.METADATA,
        checks=("params_present",),
        where={"stage": 1, "step": 0},
    ),
    _trainer_spec(
        name="evaluation-leaves-its-mode",
        summary="modules stay in evaluation mode after an evaluation",
        modelled_on="NVIDIA/Megatron-LM 5f80f0ac68, b8e23d5874: state that is not reset after an evaluation",
        layout=ONE,
        why="one rank and a step after an evaluation",
        eval_interval=1,
        checks=("evaluation",),
        where={"step": 1},
    ),
    _trainer_spec(
        name="evaluation-in-training-mode",
        summary="modules stay in training mode in evaluations, with dropout",
        modelled_on="no known bug; dropout in an evaluation",
        layout=ONE,
        why="one rank",
        eval_interval=2,
        checks=("evaluation",),
        where={"after": 2},
    ),
    _trainer_spec(
        name="evaluation-loss-of-one-replica",
        summary="each replica reports the evaluation loss of only its rows",
        modelled_on="NVIDIA/Megatron-LM 9900d9ae87: an evaluation loss that is not summed over ranks",
        layout=DP,
        why="two replicas",
        eval_interval=2,
        checks=("evaluation",),
        where={"after": 2},
    ),
)


_rollout_spec = partial(
    FaultSpec,
    fault_class="rollout",
    stack=STACK_OF_VERL[1],
    data_path="verl",
    options=PackingOptions(calculate_per_token_loss=False),  # with it, cells with cp above 1 fail
    lane=Lane.NUMERICS,
)
_nemo_rl_spec = partial(_rollout_spec, stack=STACK_OF_NEMO_RL[1], data_path="nemo_rl", options=DEFAULT_OPTIONS)
_megatron_rl_spec = partial(
    _rollout_spec, stack=STACK_OF_MEGATRON_RL[1], data_path="megatron_rl", options=DEFAULT_OPTIONS
)
ROLLOUT: tuple[FaultSpec, ...] = (
    _rollout_spec(
        name="rollout-labels-rolled-after-the-cp-split",
        summary="labels of packed rollouts are shifted within the share of a cp rank, over its chunks and documents",
        modelled_on="verl-project/verl 10175743f (PR 4250): labels are rolled before the split over cp",
        layout=CP,
        why="with cp 1 the last slots of documents are masked",
        lane=Lane.METADATA,
        checks=("tokens_placed",),
        where={"field": "log_probs"},
    ),
    _rollout_spec(
        name="rollout-log-probs-of-one-cp-rank",
        summary="log-probabilities that come from other cp ranks are those of the own rank",
        modelled_on="verl-project/verl 10175743f (PR 4250); NVIDIA-NeMo/RL allgather_cp_sharded_tensor",
        layout=CP,
        why="with cp 1 nothing is gathered",
        lane=Lane.METADATA,
        checks=("tokens_placed",),
        where={"field": "log_probs"},
    ),
    _rollout_spec(
        name="rollout-loss-mask-not-shifted",
        summary="the loss mask weighs each token's log-probability with the mask of the token before",
        modelled_on="NVIDIA-NeMo/Megatron-Bridge 84e7948ea: loss masks of tokens, not of labels",
        layout=ONE,
        why="one rank with masked tokens",
        checks=("parameter_gradients", "grad_norm"),
        where={"step": 0},
    ),
    _rollout_spec(
        name="rollout-loss-of-one-replica",
        summary="the loss is divided by the tokens of all replicas, but not multiplied by their number",
        modelled_on="NVIDIA/Megatron-LM 5946e24b37: the scale of a loss over replicas",
        layout=DP,
        why="two replicas",
        checks=("parameter_gradients", "grad_norm"),
        where={"step": 0},
    ),
    _rollout_spec(
        name="rollout-stages-with-half-of-max-seqlen",
        summary="stages that embed no tokens get half of max_seqlen",
        modelled_on="A4: NVIDIA/Megatron-LM issue 4092, a max_seqlen that is wrong on later stages",
        layout=PP,
        why="two stages",
        lane=Lane.METADATA,
        checks=("params_agree_plan",),
        where={"stage": 1, "field": "max_seqlen_q"},
    ),
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


_unit_tests_spec = partial(
    FaultSpec,
    fault_class="tests",
    stack=STACK_OF_UNIT_TESTS[1],
    data_path="upstream_tests",
    upstream_tests=UpstreamTests(
        name="seq_utils_06", file="tests/unit_tests/training/utils/test_packed_seq_utils.py", passed=19
    ),
    layout=ONE,
    why="tests run in one process",
    lane=Lane.METADATA,
    checks=("upstream_tests",),
    where={"tests": "seq_utils_06"},
    deadline_s=600.0,  # such cells took 34 to 71 s on two busy cores
)
UNIT_TESTS: tuple[FaultSpec, ...] = (
    _unit_tests_spec(
        name="offsets-without-padding-in-tested-code",
        summary="upstream's function for offsets with padding returns those without, and a unit test of it fails",
        modelled_on="B2: NVIDIA/Megatron-LM 8e44748ee2",
    ),
    _unit_tests_spec(
        name="last-test-not-collected",
        summary="pytest leaves out a test, and all others pass",
        modelled_on="no known bug; a selection by name that no longer fits renamed tests",
    ),
)
