"""The records of ranks and agents, and result.json, which says how an attempt ended. JSON, by serialization.py.

The rank record is the evidence: written before each micro-batch's forward and at the end, atomically by rename. The
supervisor of node 0 writes the result, which seals the evidence: it holds a digest of every record and of itself, so
that a reader sees any later change.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field, replace
from typing import Literal

from harness.core.cell.layout import Coordinates
from harness.core.cell.timing import GpuState, Timed
from harness.core.outcomes import Rejection
from harness.core.run.tensor_records import (
    ActivationSeen,
    Fingerprint,
    FrozenSeen,
    MergedSeen,
    OptimizerSeen,
    ParameterSeen,
    StateSeen,
)
from harness.core.serialization import dumps, from_jsonable, to_jsonable

SCHEMA_VERSION = 2  # of records; in 1, cpu_stubs were called stand_ins
PROJECTIONS = 2  # random projections in a fingerprint
MAX_TOKEN_LOSSES = 8192  # per rank and pass, checked per micro-batch: more would make records larger than useful
MAX_CONTENTION = 5.0  # a deadline is at most this many times longer on a busy machine

RankEnd = Literal["running", "completed", "raised", "deadline", "killed"]
ProcessEnd = Literal["running", "completed", "raised", "deadline", "killed", "missing"]  # missing: left no record
CellStatus = Literal["completed", "failed", "rejected", "error"]
Phase = Literal["setup", "start", "fetch", "forward", "backward", "reduce", "optimizer", "done"]  # start: of a step
# In running order; the leg that changes the weights comes last.
CanaryLeg = Literal[
    "truncation",
    "determinism",
    "isolation",
    "isolation-middle",
    "repetition",
    "order",
    "padding",
    "noise-order",
    "noise-epsilon",
    "noise-dtype",
]
# start, end: before and after all legs. An evaluation takes place before the training step of its number.
LegName = Literal["start", "metadata", "training", "evaluation", CanaryLeg, "timing", "end"]
CellRole = Literal["cell", "control"]  # control: added by the harness, not a cell of the matrix


@dataclass(kw_only=True)
class TensorForm:
    """The form of one cu_seqlens tensor, without its values."""

    dtype: str  # "torch.int32" when right
    shape: list[int]  # [documents + 1] when right
    device: str  # that of the model when right
    same_as: str | None = None  # the first field that holds the same tensor object


@dataclass(kw_only=True)
class SeenParams:
    """PackedSeqParams as observed on a rank, right or wrong. Offsets in tokens."""

    cu_seqlens_q: list[int] | None = None
    cu_seqlens_kv: list[int] | None = None
    cu_seqlens_q_padded: list[int] | None = None
    cu_seqlens_kv_padded: list[int] | None = None
    max_seqlen_q: int | None = None
    max_seqlen_kv: int | None = None
    qkv_format: str | None = None
    forms: dict[str, TensorForm] = field(default_factory=dict)  # of the cu_seqlens fields that are present
    pad_between_seqs: bool | None = None  # as passed to Transformer Engine; None: it guesses
    max_seqlen_type: str | None = None  # Python type name of max_seqlen_q, "int" when right
    context_ranks: int | None = None  # over which attention then splits documents; None: as the model was built


@dataclass(kw_only=True)
class TensorSeen:
    """One field of a fetched batch compared with the packing plan."""

    shape: list[int]
    dtype: str
    mismatches: int  # slots that differ from the plan (padding slots are not compared)
    first: list[int] | None = None  # [document, position, expected, found] of the first such slot


@dataclass(kw_only=True)
class BatchSeen:
    """One micro-batch as the data path passed it to one model chunk, before the model.

    In the metadata leg, of step 0; upstream's own trainer fetches the micro-batches of every step while it trains.
    """

    chunk: int
    micro_batch: int
    params: int | None  # index into RankRecord.packed_params, None if there were none
    tokens: TensorSeen | None = None
    labels: TensorSeen | None = None
    loss_mask: TensorSeen | None = None
    position_ids: TensorSeen | None = None
    padding_mask: TensorSeen | None = None
    step: int = 0
    log_probs: TensorSeen | None = None  # mapped back to documents; `first` names slots: probe/hooks/batches.py


@dataclass(kw_only=True)
class BuiltSeen:
    """With what upstream built a part of a rank: a configuration, or the arguments of the model's constructor.

    Of a configuration the fields that differ from megatron-core's defaults, of a constructor all plain arguments.
    """

    of: str  # "model", "constructor", "tower" (of images), "ddp" or "optimizer"
    values: dict[str, str]  # name -> value as text, as harness/probe/built.py writes it


@dataclass(kw_only=True)
class WorkloadSeen:
    """The workload of a step, as the data path counted it with the step's iterators (core/packing/arithmetic.py)."""

    leg: LegName
    step: int
    micro_batches: float
    tokens: float
    squares: float


@dataclass(kw_only=True)
class LayerSeen:
    """The arguments of one layer's attention for one micro-batch of the training leg."""

    step: int
    chunk: int
    micro_batch: int
    layer: int  # global, from 1
    params: int | None  # index into RankRecord.packed_params
    mask: str | None = None  # name of the AttnMaskType that attention applies; None: none, as in recurrent layers
    biased: bool = False  # whether something is added to the scores


@dataclass(kw_only=True)
class ExpertShare:
    """Routing of some of a rank's tokens: how many went to each expert, and the sums of their scores."""

    tokens: int
    counts: list[int]
    scores: list[float]  # softmax of the router's logits, recomputed by the probe
    squares: float | None = None  # with a z-loss: sum of the squared logarithm of each token's summed exponentials


@dataclass(kw_only=True)
class RouterSeen:
    """The router of one layer for one micro-batch, this rank's tokens (step 0)."""

    layer: int  # global, from 1
    micro_batch: int
    real: list[ExpertShare]  # per row of the micro-batch
    padding: list[ExpertShare]  # per row of the micro-batch, of tokens that belong to no document
    aux_loss: float | None = None  # this rank's share, as upstream computed it; None if there is none
    aux_weighted: float | None = None  # as upstream passes it to backward, before the schedule's scale
    z_loss: float | None = None  # this rank's share of the z-loss, as upstream computed it
    z_weighted: float | None = None
    kept: list[int] | None = None  # with a capacity: tokens of this rank that each expert takes, padding too


@dataclass(kw_only=True)
class ChoiceSeen:
    """The experts that the router of one layer chose for each slot of this rank, in the order of their micro-batch.

    Rounding decides near ties, of scores and of what is beyond a capacity, so the oracle follows the ranks.
    """

    step: int  # evaluations come after all steps, in order
    layer: int  # global, from 1
    micro_batch: int
    experts: list[list[int]]
    preferred: list[list[int]] | None = None  # by score alone, which an auxiliary loss counts; None: the same
    taken: list[list[int]] | None = None  # with a capacity: the experts that take the slot


@dataclass(kw_only=True)
class FollowedSeen:
    """How far the oracle had to follow choices of a layer in one step: what only its record has.

    `shortfall`: by how much the score of a chosen expert is below that of one left out, at most; 0 if it never is. It
    is that of `expert` for the slot at `position` of `document` (PAD: of padding). `rounding`: the largest distance of
    a score from that in the cell's dtype.

    `dropped`: of what is beyond the capacity. Then `shortfall` is by how much a slot that an expert drops ranks before
    one that it takes: by weight, or by places.
    """

    step: int
    layer: int
    shortfall: float
    rounding: float
    document: int
    position: int
    expert: int
    dropped: bool = False


@dataclass(kw_only=True)
class GradientScale:
    """What the gradients of a model chunk are multiplied by at step 0, in and after their reduction over replicas.

    None: the chunk has no such parameters that train.
    """

    chunk: int
    dense: float | None = None
    experts: float | None = None


@dataclass(kw_only=True)
class ExpertBiasSeen:
    """The bias of each expert of one layer, after the update of a step."""

    step: int
    layer: int  # global, from 1
    values: list[float]


@dataclass(kw_only=True)
class MtpSeen:
    """One multi-token prediction depth for one micro-batch on the last stage, this rank's tokens (step 0)."""

    depth: int  # from 1: tokens predicted beyond the next one
    micro_batch: int
    documents: dict[int, DocumentLoss]  # over the tokens that upstream counted; PAD: tokens of no document


@dataclass(kw_only=True)
class DocumentLoss:
    """Loss of one document on this rank's tokens: the sum over unmasked labels, and their number."""

    loss_sum: float
    tokens: int


@dataclass(kw_only=True)
class TokenLoss:
    document: int
    position: int
    loss: float


@dataclass(kw_only=True)
class StepSeen:
    """One optimizer step. Loss fields are filled on the last stage only."""

    step: int
    micro_batches: int
    loss_sum: float | None = None  # reduced over cp and dp by the probe: the whole step
    token_count: int | None = None  # of the whole step, as loss_sum
    returned_tokens: float | None = None  # this rank's, as the loss returned them; None: it returned no number
    returned_loss: float | None = None  # this rank's, summed over micro-batches, where the loss returned no number
    grad_norm: float | None = None  # pre-clip, whole model
    rates: list[float] = field(default_factory=list)  # learning rates of the optimizer's groups; distinct, sorted
    decays: list[float] = field(default_factory=list)  # weight decays of the optimizer's groups; distinct, sorted
    documents: dict[int, DocumentLoss] = field(default_factory=dict)
    tokens: list[TokenLoss] = field(default_factory=list)  # step 0 only
    time_s: float = 0.0
    busy_s: float = 0.0  # time_s without waiting: on a CPU this rank's processor time, on a GPU the same as time_s
    real_tokens: int = 0  # this replica
    slots: int = 0  # this replica
    training: bool = True  # whether all modules were in training mode


@dataclass(kw_only=True)
class ReportedStep:
    """What upstream's own trainer reported of a step, on every rank (megatron.training.training.training_log)."""

    step: int
    consumed_samples: int  # rows since the start, over all replicas
    skipped: int  # 1: the optimizer skipped the step
    loss_scale: float
    loss: float | None = None  # "lm loss", the mean over all tokens that count; on the last stage only
    grad_norm: float | None = None  # pre-clip, whole model
    learning_rate: float | None = None
    flops: float | None = None  # as it counts them, over all replicas, where it does (core/cell/reports.py)
    packed_tokens: float | None = None  # sum of the lengths of packed documents
    packed_squares: float | None = None  # sum of their squares
    printed: dict[str, str] | None = None  # fields of the line that it printed after the step, on the last rank only


@dataclass(kw_only=True)
class EvaluationSeen:
    """One evaluation between steps: forward passes over documents that no step has. Losses: last stage only."""

    after: int  # number of finished steps
    micro_batches: int
    loss_sum: float | None = None  # reduced over cp and dp by the probe: the whole evaluation
    token_count: int | None = None  # of the whole evaluation, as loss_sum
    documents: dict[int, DocumentLoss] = field(default_factory=dict)  # on this rank's tokens
    training: bool = False  # whether a module was in training mode
    reported: float | None = None  # the mean loss that upstream's own trainer reports
    activations: list[ActivationSeen] = field(default_factory=list)  # of this rank's layers, with fingerprints


@dataclass(kw_only=True)
class LaterSeen:
    """A step after step 0, or an evaluation, of a second training on one rank."""

    after: int  # number of finished steps
    loss_sum: float
    documents: dict[int, DocumentLoss]
    grad_norm: float | None = None  # None: an evaluation
    activations: list[ActivationSeen] = field(default_factory=list)  # of an evaluation by the oracle


@dataclass(kw_only=True)
class UpdateApart:
    """How far rounding may move what the optimizer makes of a weight (harness/oracle/both_ways.py), relative."""

    change: float  # by the first update
    trained: float  # by all updates


@dataclass(kw_only=True)
class TrainingSeen:
    """What a leg that trains records beyond step 0, on one rank; weights by the names of the training leg."""

    steps: list[LaterSeen]
    evaluations: list[LaterSeen]
    changes: dict[str, Fingerprint]  # of every weight, by the first update; of the oracle none, as it has `apart`
    trained: dict[str, Fingerprint]  # of every weight, by all updates; of the oracle none
    merged: dict[str, Fingerprint]  # weights with their adapters after the last step, if upstream merges their kind
    expert_biases: list[ExpertBiasSeen]
    apart: dict[str, UpdateApart] = field(default_factory=dict)  # of the oracle alone, of every weight


@dataclass(kw_only=True)
class LegSeen:
    """A canary leg: one pass over varied documents of step 0 with the initial weights (core/cell/canary_legs.py).

    Losses are those of this rank's tokens, on the last stage only; gradients as in step 0, if the leg runs backward.
    """

    leg: CanaryLeg
    loss_sum: float = 0.0  # of all labels that the loss mask counts, including those of no document
    token_count: int = 0
    documents: dict[int, DocumentLoss] = field(default_factory=dict)
    tokens: list[TokenLoss] = field(default_factory=list)
    batches: list[BatchSeen] = field(default_factory=list)  # of a leg without the model
    parameters: list[ParameterSeen] = field(default_factory=list)
    activations: list[ActivationSeen] = field(default_factory=list)
    training: TrainingSeen | None = None  # of the leg that trains
    time_s: float = 0.0  # of its pass, which legs without a backward share


@dataclass(kw_only=True)
class ImportProof:
    module: str
    version: str
    path: str


@dataclass(kw_only=True)
class Failure:
    """An exception on a rank."""

    type: str
    message: str
    traceback: str
    time: float  # seconds since the epoch
    frames: list[str] = field(default_factory=list)  # innermost last, as core/upstream.py renders them
    errno: str = ""  # name of the first system error in the exception's chain, e.g. "ESTALE"
    refused: str = ""  # arguments that upstream's parser or validation refused: runtime/recording/errors.py
    absent: str = ""  # name of upstream that the harness looked up: runtime/recording/errors.py


@dataclass(kw_only=True)
class Progress:
    """The last position that a rank recorded."""

    leg: LegName = "start"
    step: int = 0
    micro_batch: int = 0
    phase: Phase = "setup"


@dataclass(kw_only=True)
class RankRecord:
    cell: str
    rank: int
    place: Coordinates
    run_id: str = ""  # with `attempt`: of the folder that it was written to; empty outside a run directory
    attempt: int = 0  # from 1
    ended: RankEnd = "running"
    progress: Progress = field(default_factory=Progress)
    failure: Failure | None = None
    imports: list[ImportProof] = field(default_factory=list)
    modules: dict[str, str] = field(default_factory=dict)  # submodules, in the short form of judge/import_check.py
    cpu_stubs: list[str] = field(default_factory=list)
    gloo_stubs: list[str] = field(default_factory=list)  # of ranks that share a GPU
    environment: dict[str, str] = field(default_factory=dict)  # device, backend, attention, versions, host
    built: list[BuiltSeen] = field(default_factory=list)  # with what upstream built model, DDP and optimizer
    built_at: Coordinates | None = None  # the rank's place in upstream's process groups, once it has a model
    micro_batches: list[int] = field(default_factory=list)  # per step, as planned by the data path on this rank
    workloads: list[WorkloadSeen] = field(default_factory=list)  # of data paths that count the work of a step
    packed_params: list[SeenParams] = field(default_factory=list)  # distinct values, referred to by index
    batches: list[BatchSeen] = field(default_factory=list)
    not_read: list[str] = field(default_factory=list)  # what upstream hands to the model, and no check reads: names
    layers: list[LayerSeen] = field(default_factory=list)
    recomputed: list[LayerSeen] = field(default_factory=list)  # arguments of attention when backward recomputes it
    steps: list[StepSeen] = field(default_factory=list)
    entry_point: str = ""  # by which upstream's trainer was entered, if it has several (core/cell/reports.py)
    reported: list[ReportedStep] = field(default_factory=list)  # of trainers other than the harness's
    counts_packed: bool | None = None  # whether this release counts packed tokens; None: the trainer counts no FLOPs
    evaluations: list[EvaluationSeen] = field(default_factory=list)
    states: list[StateSeen] = field(default_factory=list)  # of cells that continue from a checkpoint
    parameters: list[ParameterSeen] = field(default_factory=list)
    optimizer: OptimizerSeen | None = None  # from the first update on, if fingerprints are recorded
    frozen: list[FrozenSeen] = field(default_factory=list)  # of models with adapters
    merged: list[MergedSeen] = field(default_factory=list)  # of models with adapters of a kind that upstream merges
    activations: list[ActivationSeen] = field(default_factory=list)
    legs: list[LegSeen] = field(default_factory=list)
    routers: list[RouterSeen] = field(default_factory=list)
    expert_biases: list[ExpertBiasSeen] = field(default_factory=list)  # of models that have them
    choices: list[ChoiceSeen] = field(default_factory=list)
    followed: list[FollowedSeen] = field(default_factory=list)  # of the oracle alone
    gradient_scales: list[GradientScale] = field(default_factory=list)  # per chunk
    aux_scale: float | None = None  # the schedule's scale on auxiliary losses and z-losses, step 0
    mtp: list[MtpSeen] = field(default_factory=list)
    timings: list[Timed] = field(default_factory=list)  # of the timing leg
    untimed: dict[str, str] = field(default_factory=dict)  # load that the stack or the layout cannot run -> why
    warmup_rounds: int = 0  # of the timing leg, before those in `timings`
    gpu_states: list[GpuState] = field(default_factory=list)  # during the timing leg, on a GPU
    peak_memory_bytes: int = 0  # up to the timing leg or an exception; on a GPU the memory of torch's tensors
    peak_reserved_bytes: int | None = None  # on a GPU: memory that torch's allocator reserved for them
    setup_s: float = 0.0
    schema_version: int = SCHEMA_VERSION


@dataclass(kw_only=True)
class OracleRecord:
    """What the oracle computed of the ranks of a cell, as one rank would record it; or why it computed nothing.

    The leg `noise-dtype` of the record is the same training in the cell's dtype.
    """

    cell: str
    built: list[BuiltSeen]  # from which it knows the model and the optimizer
    record: RankRecord | None = None
    not_modelled: str = ""  # what of the cell the oracle does not model
    failed: str = ""  # the traceback of an exception in the oracle
    choices: str = ""  # digest of the ranks' choices that it followed (record_file.py); empty: of none
    schema_version: int = SCHEMA_VERSION


@dataclass(kw_only=True)
class RankEnding:
    """How a rank's process ended, as its parent saw it."""

    rank: int
    ended: ProcessEnd
    exit_code: int | None = None
    hang: str | None = None  # collective in the stack dump of a rank that hit the deadline
    stack: list[str] | None = None  # frames of that dump, innermost last; None: there is no dump
    flight: list[str] = field(default_factory=list)  # collectives that had not completed, from torch's flight recorder
    still_s: float | None = None  # seconds without progress before the deadline
    digest: str = ""  # SHA-256 of its record once its process had ended; empty: no record, or its node was lost


@dataclass(kw_only=True)
class CellResult:
    """Written once by the agent at the end of an attempt; if it exists, the attempt is over."""

    cell: str
    attempt: int
    status: CellStatus
    reason: str = ""
    rejection: Rejection | None = None
    first_failure_rank: int | None = None
    ranks: list[RankEnding] = field(default_factory=list)
    started: float = 0.0  # seconds since the epoch
    finished: float = 0.0
    steps_s: float = 0.0  # largest sum of step times over the ranks
    oracle: str = ""  # SHA-256 of oracle.json; empty: there is none
    deadline_s: float = 0.0  # that the ranks had: the cell's, longer on a busy machine; 0 if none was started
    seal: str = ""  # `digest_of_result` of everything else
    schema_version: int = SCHEMA_VERSION


def sealed(result: CellResult) -> CellResult:
    """Return the result with its seal, to be written."""
    written = from_jsonable(CellResult, to_jsonable(result))  # as a reader has it: 0.0 s for a sum that is 0
    return replace(written, seal=digest_of_result(written))


def digest_of_result(result: CellResult) -> str:
    """Return the SHA-256 of a result without its seal, in hexadecimal."""
    return hashlib.sha256(dumps(replace(result, seal="")).encode("utf-8", "surrogatepass")).hexdigest()
