"""The sections of a matrix file. Most are dataclasses, from which section.py makes models; the others are models.

Every description ends up in the JSON Schema (`harness schema`) and in the tables of docs/matrix.md.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, WithJsonSchema

from harness.core.cell.config import CANARIES, DEFAULT_CANARIES, ModelConfig, TrainConfig
from harness.core.data_paths.own import UpstreamTests
from harness.core.packing.documents import KEYS_OF_MODE, MIXES, DocumentsConfig
from harness.core.packing.options import PackingOptions
from harness.core.run.run_plan import MayReject, XFail
from harness.core.setting import keys_of, setting
from harness.core.stack import SAFE_NAME, safe_name
from harness.plan.schema.bounds import Bounds
from harness.plan.schema.section import Section, model_of, model_with, one_of
from harness.plan.schema.select import SelectSection
from harness.plan.schema.throughput import ThroughputSection
from harness.plan.stacks.section import RecipeName, StackLayer

Name = Annotated[str, AfterValidator(safe_name), Field(json_schema_extra={"pattern": f"^{SAFE_NAME}$"})]


def _documents(name: str, doc: str, mode: Any, default: Any = ...) -> type[Section]:
    keys = keys_of(DocumentsConfig)
    named = KEYS_OF_MODE[default if default is not ... else mode.__args__[0]]
    return model_with(name, doc, [keys[key] for key in named], mode=(mode, default))


AdversarialDocuments = _documents(
    "AdversarialDocuments",
    "The built-in mix of lengths that exposes most known packing bugs; in `uncut` no document is truncated, in `plain` "
    "none is masked either; `multi_turn` and `delimited` are `uncut` with prompts and answers in turn, `images` is "
    "`plain` with images.",
    Literal[MIXES],
    MIXES[0],
)
DistributionDocuments = _documents(
    "DistributionDocuments",
    "Random lengths, as Megatron-LM's mock SFT dataset draws them.",
    Literal["distribution"],
)
FileDocuments = _documents(
    "FileDocuments",
    "Lengths from a CSV file or from the matrix itself, taken in order and repeated.",
    Literal["file"],
)
DOCUMENT_MODES: dict[str, type[Section]] = {
    **dict.fromkeys(MIXES, AdversarialDocuments),
    "distribution": DistributionDocuments,
    "file": FileDocuments,
}


@dataclass(frozen=True, kw_only=True)
class Launch:
    """How cells are run."""

    parallel_ranks: int | None = setting(
        None, doc="Ranks that run at once; if omitted, as many as the cores allow.", ge=1, le=65_536
    )
    deadline_s: float = setting(
        120.0,
        doc=(
            "Seconds after which a cell that has not ended is stopped, with the stack of every rank in its log; up to "
            "5 times as many on a node where other processes use the cores."
        ),
        gt=0,
        le=604_800,
    )
    max_ranks: int = setting(64, doc="A cell that needs more ranks is rejected.", ge=1, le=65_536)
    cells_per_allocation: int | None = setting(
        None,
        doc="Cells that one job runs one after the other; auto: as many as fit half of its time limit.",
        ge=1,
        le=2**20,
        auto=True,
    )
    throttle: int = setting(64, doc="Jobs of one array that may run at once.", ge=1, le=65_536)
    time_limit_min: int | None = setting(
        None, doc="Time limit of one job in minutes; if omitted, that of the cluster profile.", ge=1, le=525_600
    )
    max_attempts: int = setting(
        3,
        doc="Maximum attempts per cell; it is retried if its job loses a node or GPU, is preempted or about to end.",
        ge=1,
        le=100,
    )
    nodes_per_cell: int = setting(
        1, doc="Minimum nodes per cell; a cell with fewer ranks gets one node per rank.", ge=1, le=65_536
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
        default=list(DEFAULT_CANARIES), description="Canaries that every cell runs in addition to its training."
    )

    fingerprints: bool = Field(
        default=True,
        description="Compare gradients and activations of step 0; false: only losses, counts and gradient norms.",
    )

    numerics: Bounds = Field(
        default_factory=dict,
        description="Name of a bound -> largest allowed distance, or a mapping of value, unit and direction.",
    )
    throughput: ThroughputSection = Field(
        default_factory=ThroughputSection, description="What the throughput lane times and judges."
    )


Cluster = Annotated[str, Field(min_length=1)]


class MatrixFile(Section):
    """A matrix file of the packing harness. `matrix:` is read by matrix/axes.py and described by json_schema.py."""

    name: Name = Field(description="Names the run: letters, digits, `.`, `_`, `-`; at most 64.")
    model: model_of(ModelConfig) = Field(  # type: ignore[valid-type]
        default_factory=ModelConfig, description="The model."
    )
    train: model_of(TrainConfig) = Field(  # type: ignore[valid-type]
        default_factory=TrainConfig, description="The training run."
    )
    documents: AdversarialDocuments | DistributionDocuments | FileDocuments = Field(  # type: ignore[valid-type]
        default_factory=AdversarialDocuments, discriminator="mode", description="Where document lengths come from."
    )
    packing_options: model_of(PackingOptions) = Field(  # type: ignore[valid-type]
        default_factory=PackingOptions, description="Options of packing and of the loss, for every cell."
    )
    matrix: dict[str, Any] = Field(description="The axes, whose values multiply into cells.")
    constraints: str | list[str] = Field(
        default_factory=list,
        description="Expressions over axes; combinations that violate one are dropped and counted.",
    )
    select: SelectSection = Field(
        default="full", description="Which of the allowed cells run: [all or a covering selection](#select)."
    )
    args: str | dict[str, Any] = Field(
        default_factory=dict,
        description="[Arguments of upstream's trainer](trainers.md#arguments), for every cell: a mapping or a text.",
    )
    profiles: dict[str, str | dict[str, Any]] = Field(
        default_factory=dict,
        description="Arguments by name, for the axis `args`: a mapping, or the flags of a run as text.",
    )
    upstream_tests: dict[Name, model_of(UpstreamTests)] = Field(  # type: ignore[valid-type]
        default_factory=dict,
        description="[Unit tests of upstream](data_paths.md#upstream_tests) by name, for the axis `upstream_tests`.",
    )
    launch: model_of(Launch) = Field(  # type: ignore[valid-type]
        default_factory=Launch, description="How cells run."
    )
    checks: ChecksSection = Field(default_factory=ChecksSection, description="Bounds of the checks, and canaries.")
    xfail: list[model_of(XFail)] = Field(  # type: ignore[valid-type]
        default_factory=list, description="Known failures."
    )
    may_reject: list[model_of(MayReject)] = Field(  # type: ignore[valid-type]
        default_factory=list, description="Cells that a checkout may [lack something for](#may_reject)."
    )
    stacks: dict[str, RecipeName | StackLayer | Annotated[list[RecipeName | StackLayer], Field(min_length=1)]] = Field(
        default_factory=dict,
        description="[Software under test](stacks.md), by name: a layer or a list of layers, the top layer first; a "
        "[recipe](stacks.md#recipes) may take the place of a layer.",
        json_schema_extra={"propertyNames": {"pattern": f"^{SAFE_NAME}$"}},
    )
    cluster: Cluster = Field(
        default="local",
        description="Where cells run: `local` is this machine, any other name a [cluster profile](clusters.md); "
        "a path is relative to the matrix file.",
    )
