"""The sections of a matrix file as pydantic models, and the long names that Megatron users may write instead.

Defaults live in the dataclasses of `words`; every description ends up in the JSON Schema (`harness schema`).
"""

from __future__ import annotations

import re
from datetime import date
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, WithJsonSchema

from harness.plan.bounds import Bounds
from harness.plan.model_section import ModelSection
from harness.plan.section import SAFE_NAME, Count, Section, one_of
from harness.plan.select_section import SelectSection
from harness.plan.stacks import StackLayer
from harness.plan.throughput_section import ThroughputSection
from harness.words.attention import ATTENTIONS
from harness.words.cell import CANARIES, DATA_PATHS, DEFAULT_CANARIES, FORBIDDEN, TrainConfig
from harness.words.devices import DEVICES
from harness.words.documents import MIXES
from harness.words.outcomes import Lane
from harness.words.packing_options import PackingOptions
from harness.words.stack import DEFAULT
from harness.words.tolerances import DEFAULTS

DTYPES = (*DEFAULTS, "fp8")  # fp8 is known, and refused by a rule


def _auto_to_none(value: Any) -> Any:
    return None if value == "auto" else value


def _safe_name(value: str) -> str:
    if not re.fullmatch(SAFE_NAME, value):
        raise ValueError("must be 1 to 64 letters, digits, '.', '_' or '-', a letter or digit first")
    return value


MOST_LENGTH = 2**31 - 1  # tokens of a document before it is truncated
MOST_LENGTHS = 10_000  # of a list or file: a resolved matrix holds them all
Length = Annotated[int, Field(ge=1, le=MOST_LENGTH)]
Name = Annotated[str, AfterValidator(_safe_name), Field(json_schema_extra={"pattern": f"^{SAFE_NAME}$"})]
AutoBool = Annotated[bool | None, BeforeValidator(_auto_to_none), WithJsonSchema({"enum": [True, False, "auto"]})]
AutoCount = Annotated[
    int | None,
    Field(ge=1, le=2**20),
    BeforeValidator(_auto_to_none),
    WithJsonSchema({"anyOf": [{"type": "integer", "minimum": 1, "maximum": 2**20}, {"const": "auto"}]}),
]
Packing = Annotated[str, one_of(*DATA_PATHS), Field(json_schema_extra={"enum": [*DATA_PATHS]})]
Forbidden = Annotated[str, one_of("", *FORBIDDEN), Field(json_schema_extra={"enum": ["", *FORBIDDEN]})]
Dtype = Annotated[str, one_of(*DTYPES), Field(json_schema_extra={"enum": [*DTYPES]})]
Attention = Annotated[str, one_of(*ATTENTIONS), Field(json_schema_extra={"enum": [*ATTENTIONS]})]
DeviceName = Annotated[str, one_of(*DEVICES), Field(json_schema_extra={"enum": [*DEVICES]})]
Mix = Annotated[str, one_of(*MIXES), Field(json_schema_extra={"enum": [*MIXES]})]
_TRAIN, _OPTIONS = TrainConfig(), PackingOptions()


class TrainSection(Section):
    """The short training run, the same in every layout."""

    steps: Count = Field(default=_TRAIN.steps, le=10_000, description="Training steps.")
    global_batch: Count = Field(default=_TRAIN.global_batch, le=4_096, description="Documents per step.")
    seq_length: Annotated[int, Field(ge=4, le=2**20)] = Field(
        default=_TRAIN.seq_length, description="Tokens of a full row; longer documents are truncated to it."
    )
    lr: Annotated[float, Field(gt=0, le=1e6, allow_inf_nan=False)] = Field(
        default=_TRAIN.lr, description="Learning rate."
    )
    seed: Annotated[int, Field(ge=0, le=2**63 - 1)] = Field(
        default=_TRAIN.seed, description="Seed of weights, tokens and lengths."
    )


class AdversarialDocuments(Section):
    """The built-in mix of lengths in which most known packing bugs show; `uncut` leaves out the truncated one."""

    mode: Literal["adversarial", "uncut"] = "adversarial"


class DistributionDocuments(Section):
    """Random lengths, as Megatron-LM's mock SFT dataset draws them."""

    mode: Literal["distribution"]
    type: Literal["lognormal"] = Field(default="lognormal", description="Family of the distribution.")
    min_seq_len: Length = Field(default=1, description="Shortest document, tokens.")
    max_seq_len: Length = Field(description="Longest document, tokens.")
    mean_seq_len: Annotated[float, Field(gt=0, le=MOST_LENGTH, allow_inf_nan=False)] = Field(
        description="Mean length, tokens."
    )
    lognormal_sigma: Annotated[float, Field(ge=0, le=100, allow_inf_nan=False)] = Field(
        1.1, description="Sigma of log(length)."
    )


class FileDocuments(Section):
    """Lengths from a CSV file or from the matrix itself, taken in order and round again."""

    mode: Literal["file"]
    path: str | None = Field(
        default=None, description="CSV file of one column of lengths, relative to the matrix file."
    )
    lengths: Annotated[list[Length], Field(min_length=1, max_length=MOST_LENGTHS)] | None = Field(
        default=None, description="The lengths themselves."
    )


DOCUMENT_MODES: dict[str, type[Section]] = {
    **dict.fromkeys(MIXES, AdversarialDocuments),
    "distribution": DistributionDocuments,
    "file": FileDocuments,
}


class OptionsSection(Section):
    """Options of packing and of the loss; the rules say which of them a layout allows."""

    pad_seq_to_mult: AutoCount = Field(
        default=None,
        description="Pad each document to a multiple of this many tokens; auto: what the data path derives.",
    )
    pad_to_max_length: bool = Field(
        default=_OPTIONS.pad_to_max_length, description="Every packed row has seq_length slots."
    )
    pad_cu_seqlens: bool = Field(
        default=_OPTIONS.pad_cu_seqlens, description="cu_seqlens has a fixed number of entries."
    )
    metadata: bool = Field(default=_OPTIONS.metadata, description="Pack metadata lies beside the documents.")
    remove_microbatch_padding: bool = Field(
        default=_OPTIONS.remove_microbatch_padding,
        description="`skyrl` packs the documents of a micro-batch; false: one padded row each.",
    )
    calculate_per_token_loss: bool = Field(
        default=_OPTIONS.calculate_per_token_loss, description="Sum the loss over tokens, divide once by all tokens."
    )
    average_in_collective: bool = Field(
        default=_OPTIONS.average_in_collective, description="Average gradients inside the collective."
    )


class AxisRow(OptionsSection):
    """Values of some axes: one combination, or a row of include, exclude or a tied list."""

    tp: Count = Field(default=1, le=4_096, description="Tensor parallel size.")
    pp: Count = Field(default=1, le=4_096, description="Pipeline parallel size.")
    cp: Count = Field(default=1, le=4_096, description="Context parallel size.")
    dp: Count = Field(default=1, le=4_096, description="Data parallel replicas.")
    ep: Count = Field(default=1, le=4_096, description="Expert parallel size.")
    vpp: Count = Field(default=1, le=1_024, description="Model chunks per pipeline stage.")
    sp: AutoBool = Field(default=None, description="Sequence parallel; auto: on exactly when tp > 1.")
    micro_batch_size: Count = Field(default=1, le=4_096, description="Rows per micro-batch.")
    packing: Packing = Field(default="reference", description="Data path under test.")
    dtype: Dtype = Field(default="fp32", description="Compute dtype.")
    attention: Attention = Field(default="auto", description="Attention kernel; auto: the best that is there.")
    device: DeviceName = Field(default="auto", description="Where ranks compute; auto: on GPUs where there are any.")
    forbidden: Forbidden = Field(
        default="", description="With packing `rules`: the combination that upstream must refuse."
    )
    documents: Mix = Field(default=MIXES[0], description="A built-in mix instead of what `documents:` says.")
    timed: bool = Field(default=True, description="Whether `checks.throughput` times the cell.")
    stack: Name = Field(default=DEFAULT, description="Software under test: a name under `stacks`, or `default`.")


class LaunchSection(Section):
    """How cells are run."""

    parallel_ranks: Count | None = Field(
        default=None, le=65_536, description="Ranks that run at once; absent: as the cores allow."
    )
    deadline_s: Annotated[float, Field(gt=0, le=604_800, allow_inf_nan=False)] = Field(
        default=120.0, description="Seconds after which a cell that has not ended is stopped and named a hang."
    )
    max_ranks: Count = Field(default=64, le=65_536, description="A cell that needs more ranks is rejected.")
    cells_per_allocation: AutoCount = Field(
        default=None, description="Cells that one job runs in turn; auto: as many as fit its time limit."
    )
    throttle: Count = Field(default=64, le=65_536, description="Jobs of one array that may run at once.")
    time_limit_min: Count | None = Field(
        default=None, le=525_600, description="Minutes of one job; absent: the most that the cluster profile allows."
    )
    max_attempts: Count = Field(
        default=3,
        le=100,
        description="Attempts of one cell in all, when node failure, boot failure or preemption ends it.",
    )
    nodes_per_cell: Count = Field(
        default=1,
        le=65_536,
        description="Spread a cell over at least so many nodes, or one per rank if it has fewer ranks.",
    )


CANARY_SETS = {"all": CANARIES, "none": ()}


def _canaries(value: Any) -> Any:
    if isinstance(value, str) and value in CANARY_SETS:
        return list(CANARY_SETS[value])
    if not isinstance(value, list):
        raise ValueError(f"must be {', '.join(CANARY_SETS)} or a list of {', '.join(CANARIES)}")
    return value


CanaryName = Annotated[str, one_of(*CANARIES)]
Canaries = Annotated[
    list[CanaryName],
    BeforeValidator(_canaries),
    WithJsonSchema({"anyOf": [{"enum": [*CANARY_SETS]}, {"type": "array", "items": {"enum": [*CANARIES]}}]}),
]


class ChecksSection(Section):
    """Bounds that replace the defaults of the numerics lane, and the canaries that cells run."""

    canaries: Canaries = Field(
        default=list(DEFAULT_CANARIES), description="Canaries that every cell runs: passes beyond its training."
    )

    fingerprints: bool = Field(
        default=True,
        description="Gradients and activations of step 0 are compared; false: losses, counts and gradient norms alone.",
    )

    numerics: Bounds = Field(
        default_factory=dict,
        description="Name of a bound -> largest allowed distance, or a mapping of value, unit and direction.",
    )
    throughput: ThroughputSection = Field(
        default_factory=ThroughputSection, description="What the throughput lane times and judges."
    )


def _iso_date(value: Any) -> Any:
    """YAML reads an unquoted date as a date; a quoted one is text."""
    if isinstance(value, str):
        try:
            return date.fromisoformat(value)
        except ValueError:
            raise ValueError("must be a date like 2027-01-31") from None
    if type(value) is not date:
        raise ValueError("must be a date like 2027-01-31")
    return value


LaneName = Annotated[str, one_of(*(lane.value for lane in Lane)), Field(json_schema_extra={"enum": [*Lane]})]


class XFailEntry(Section):
    """A known failure."""

    pattern: str = Field(min_length=1, description="Shell-style pattern over cell names, e.g. tp2-*-sft.")
    reason: str = Field(min_length=1, description="Why it fails.")
    link: str = Field(default="", description="Where it is tracked.")
    expires: Annotated[date, BeforeValidator(_iso_date)] | None = Field(
        default=None, description="Date after which the failure counts again."
    )
    lanes: list[LaneName] = Field(
        default_factory=list, description="Lanes that fail; any other set of lanes is a FAIL."
    )
    says: list[Annotated[str, Field(min_length=1)]] = Field(
        default_factory=list, description="Texts that must each stand in a finding; else it fails elsewhere: FAIL."
    )
    strict: bool = Field(default=False, description="A cell that passes is a FAIL, not an XPASS.")


Cluster = Annotated[str, Field(min_length=1)]


class MatrixFile(Section):
    """A matrix file of the packing harness. `matrix:` is read by axes.py and described by json_schema.py."""

    name: Name = Field(description="Names the run: letters, digits, '.', '_', '-'; at most 64.")
    model: ModelSection = Field(default_factory=ModelSection)
    train: TrainSection = Field(default_factory=TrainSection)
    documents: AdversarialDocuments | DistributionDocuments | FileDocuments = Field(
        default_factory=AdversarialDocuments, discriminator="mode", description="Where document lengths come from."
    )
    packing_options: OptionsSection = Field(default_factory=OptionsSection)
    matrix: dict[str, Any] = Field(description="The axes whose values multiply into cells.")
    constraints: list[str] | str = Field(
        default_factory=list, description="Expressions over axis names; a combination that breaks one is dropped."
    )
    select: SelectSection = Field(
        default="full",
        description="Of the cells that nothing forbids, all, or so many that every pair of values is run.",
    )
    stacks: dict[str, StackLayer | Annotated[list[StackLayer], Field(min_length=1)]] = Field(
        default_factory=dict,
        description="Software under test: name -> layer or list of layers, the upper first.",
        json_schema_extra={"propertyNames": {"pattern": f"^{SAFE_NAME}$"}},
    )
    cluster: Cluster = Field(
        default="local", description="Where cells run: a cluster profile by name, or its path beside this file."
    )
    launch: LaunchSection = Field(default_factory=LaunchSection)
    checks: ChecksSection = Field(default_factory=ChecksSection)
    xfail: list[XFailEntry] = Field(default_factory=list, description="Known failures.")


AXIS_ALIASES = {
    "tensor_model_parallel_size": "tp",
    "pipeline_model_parallel_size": "pp",
    "context_parallel_size": "cp",
    "data_parallel_size": "dp",
    "expert_model_parallel_size": "ep",
    "virtual_pipeline_model_parallel_size": "vpp",
    "sequence_parallel": "sp",
    "mbs": "micro_batch_size",
    "use_sample_packing": "remove_microbatch_padding",
}
TRAIN_ALIASES = {
    "train_iters": "steps",
    "global_batch_size": "global_batch",
    "gbs": "global_batch",
    "seq_len": "seq_length",
}
