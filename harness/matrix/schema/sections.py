"""The sections of a matrix file. Most are dataclasses, from which section.py makes models; the others are models.

Every description ends up in the JSON Schema (`harness schema`) and in docs/generated/keys.md. The sections
`documents` and `model` are parsed here too: their keys depend on each other.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import date
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, WithJsonSchema

from harness.core.cell.config import CANARIES, DEFAULT_CANARIES, TrainConfig
from harness.core.cell.model import OF_ROTARY, ROTARY, ModelConfig
from harness.core.cell.timing import DOCUMENTS, ROTARY_TOKENS, ROUNDS, STEP_TOKENS, WARMUP, TimingConfig
from harness.core.errors import InputError
from harness.core.hardware import PEAK_DTYPES
from harness.core.packing.documents import KEYS_OF_MODE, MIXES, MODES, DocumentsConfig
from harness.core.packing.options import PackingOptions
from harness.core.run.run_plan import BaselineRequest, MayReject, Origin, XFail
from harness.core.setting import keys_of, setting
from harness.core.stack import SAFE_NAME, safe_name
from harness.core.tolerances import (
    BOUND_NAMES,
    DEFAULTS,
    DIRECTIONS,
    MAX_DISTANCE,
    MIN_RUNS,
    RATIO_SCREEN,
    UNITS,
    UNSIGNED,
    Override,
)
from harness.features.experts.layers import EVERY
from harness.features.hybrid.pattern import EXPERTS, layers_of
from harness.features.vision.config import VisionConfig
from harness.matrix.problems import KeyPath, Problems, shown
from harness.matrix.schema.section import Section, dataclass_of, model_of, model_with, one_of, parts_of
from harness.matrix.stacks.section import RecipeName, StackLayer

BoundSection: Any = model_of(Override)


def _as_mapping(value: Any) -> Any:
    """Return the mapping form of a bound: a plain number becomes its value."""
    if isinstance(value, (BoundSection, Mapping)):
        return value
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise ValueError("must be a number, or a mapping of value, unit and direction")
    if not value > 0:
        raise ValueError("must be above 0")
    if not value <= MAX_DISTANCE:
        raise ValueError(f"must be finite, and at most {MAX_DISTANCE:,.0f}")
    return {"value": float(value)}


def _check_keys(bounds: dict[str, Any]) -> dict[str, Any]:
    """Return the bounds; ValueError for a key that a bound cannot have."""
    for name, bound in bounds.items():
        if name in UNSIGNED and bound.direction not in (None, "either"):
            raise ValueError(f"{name} is a distance of fingerprints, which has no sign: leave direction out")
        if name == RATIO_SCREEN and (bound.unit or bound.direction):
            raise ValueError(f"{RATIO_SCREEN} is a plain number")
    return bounds


def overrides_of(bounds: Mapping[str, Section]) -> dict[str, Override]:
    """Return the checked bounds as the dataclasses that a matrix holds."""
    return {name: dataclass_of(Override, bound) for name, bound in bounds.items()}


def bounds_as_written(bounds: Mapping[str, Override]) -> dict[str, Any]:
    """Return the section as in a matrix file: bound -> number, or a mapping if unit or direction was given."""
    return {
        name: bound.value
        if bound.unit is None and bound.direction is None
        else {key: value for key, value in vars(bound).items() if value is not None}
        for name, bound in bounds.items()
    }


_POSITIVE = {"type": "number", "exclusiveMinimum": 0, "maximum": MAX_DISTANCE}
_BOUND_SCHEMA = {
    "anyOf": [
        _POSITIVE,
        {
            "type": "object",
            "properties": {"value": _POSITIVE, "unit": {"enum": [*UNITS]}, "direction": {"enum": [*DIRECTIONS]}},
            "required": ["value"],
            "additionalProperties": False,
        },
    ]
}
BoundName = Annotated[str, one_of(*BOUND_NAMES, RATIO_SCREEN)]
BoundValue = Annotated[BoundSection, BeforeValidator(_as_mapping), WithJsonSchema(_BOUND_SCHEMA)]
Bounds = Annotated[dict[BoundName, BoundValue], AfterValidator(_check_keys)]


SELECT_NAMES = ("full", "covering")  # of `select`
PAIRS = 2  # axes that a covering selection covers together
_MAX_STRENGTH = 6


class CoveringSection(Section):
    """A covering selection: the cells that run have every t-tuple of axis values that an allowed cell has."""

    covering: Annotated[int, Field(ge=1, le=_MAX_STRENGTH)] = Field(
        default=PAIRS, description="Number of axes covered together: 2 for every pair of values, 3 for every triple."
    )
    keep: list[str | dict[str, Any]] = Field(
        default_factory=list, description="Cells that always run: patterns over cell names, or values of axes."
    )


SelectSection = Annotated[
    Any, WithJsonSchema({"anyOf": [{"enum": [*SELECT_NAMES]}, CoveringSection.model_json_schema()]})
]


MAX_PER_PACK = 1024
TO_BE_PAIRED = "?"
_DEFAULT_BOUNDS = DEFAULTS["fp32"]
MAX_FACTOR = 1_000  # slower than that is a hang
_SlowdownBound = Annotated[float, Field(gt=1, le=MAX_FACTOR, allow_inf_nan=False)]
_MAX_TOKENS = 2**20


def _dtypes(values: dict[str, float]) -> dict[str, float]:
    for name in values:
        if name not in PEAK_DTYPES:
            raise ValueError(f"{name} is not a dtype of cells; allowed: {', '.join(PEAK_DTYPES)}")
    return values


MAX_TFLOPS = 1e6  # of one GPU
PeakTflops = Annotated[
    dict[str, Annotated[float, Field(gt=0, le=MAX_TFLOPS, allow_inf_nan=False)]], AfterValidator(_dtypes)
]


def _dividing(values: list[int]) -> list[int]:
    """Return the values; ValueError unless packs of one length can hold each number of documents, in equal lengths."""
    if values != sorted(set(values)):
        raise ValueError("must be in ascending order, without duplicates")
    if any(values[-1] % value for value in values):
        raise ValueError(f"each must divide the last one, {values[-1]}")
    return values


def _date(text: str) -> str:
    try:
        date.fromisoformat(text)
    except ValueError as error:
        raise ValueError("must be a date like 2026-08-01, in quotes") from error
    return text


class SlopeSection(Section):
    """Time over the number of documents in a pack, at a fixed number of tokens."""

    bound: _SlowdownBound = Field(
        default=_DEFAULT_BOUNDS.segment_slope.value,
        description="Largest ratio of step times, most documents over fewest.",
    )
    rotary_bound: _SlowdownBound = Field(
        default=_DEFAULT_BOUNDS.rotary_slope.value, description="The same for the stack's rotary function alone."
    )
    documents: Annotated[
        list[Annotated[int, Field(ge=2, le=MAX_PER_PACK)]], Field(min_length=2), AfterValidator(_dividing)
    ] = Field(
        default=list(DOCUMENTS),
        description="Documents per pack, in ascending order, each a divisor of the last.",
    )
    tokens: Annotated[int, Field(ge=1, le=_MAX_TOKENS)] | None = Field(
        default=None,
        description=f"Tokens per pack, about; if omitted, {ROTARY_TOKENS} (rotary function) and {STEP_TOKENS} (step).",
    )


class PackedSlowerSection(Section):
    """Packed against unpacked, over the same documents."""

    bound: _SlowdownBound = Field(
        default=_DEFAULT_BOUNDS.packed_slower.value, description="Largest ratio of times, packed over unpacked."
    )


class SlowerThanSection(Section):
    """Every cell against the same cell in a base stack, interleaved."""

    stack: str = Field(min_length=1, description="The base: the other stack of the axis `stack`.")
    bound: _SlowdownBound = Field(
        default=_DEFAULT_BOUNDS.slower_than.value, description="Largest ratio of times, the other stack over the base."
    )


class HistorySection(Section):
    """Every cell against the green runs of the same cell on the same hardware."""

    runs: Annotated[int, Field(ge=MIN_RUNS, le=100)] = Field(
        default=20, description="Number of newest runs that count."
    )
    slower: _SlowdownBound = Field(
        default=_DEFAULT_BOUNDS.slower_than_history.value, description="Largest ratio of the time to their median."
    )
    since: Annotated[str, AfterValidator(_date)] = Field(
        default="", description="Date, in quotes: only runs from then on count; set it after accepting a slowdown."
    )


def _named(value: Any) -> Any:
    return {"stack": value} if isinstance(value, str) else value


def _switch(value: Any) -> Any:
    """Return the section for a boolean: `true` is the defaults, `false` switches it off."""
    return {True: {}, False: None}[value] if isinstance(value, bool) else value


def _switched(section: type[Section]) -> WithJsonSchema:
    return WithJsonSchema({"anyOf": [{"type": "boolean"}, section.model_json_schema()]})


class ThroughputSection(Section):
    """Checks of the throughput lane, each `true` or a mapping of what differs from the defaults."""

    segment_slope: Annotated[SlopeSection | None, BeforeValidator(_switch), _switched(SlopeSection)] = Field(
        default=None, description="Time of packs with few and with many documents."
    )
    packed_slower: Annotated[PackedSlowerSection | None, BeforeValidator(_switch), _switched(PackedSlowerSection)] = (
        Field(default=None, description="Time of a step's documents packed, over one document per row.")
    )
    slower_than: Annotated[
        SlowerThanSection | None,
        BeforeValidator(_named),
        WithJsonSchema({"anyOf": [{"type": "string"}, SlowerThanSection.model_json_schema()]}),
    ] = Field(default=None, description="The stack to time the other one against, interleaved.")
    history: Annotated[HistorySection | None, BeforeValidator(_switch), _switched(HistorySection)] = Field(
        default=None, description="Earlier green runs that a step is timed against."
    )
    rounds: Annotated[int, Field(ge=ROUNDS, le=101)] = Field(
        default=ROUNDS,
        description=f"How often each load is timed; with fewer than {ROUNDS} rounds no result can be significant.",
    )
    warmup: Annotated[int, Field(ge=1, le=100)] | None = Field(
        default=None,
        description="Unrecorded rounds before the first recorded one; "
        f"if omitted, {WARMUP['cpu']} on a CPU and {WARMUP['cuda']} on a GPU.",
    )
    full_rows: bool = Field(
        default=False, description="Also time rows of one full-length document, and show packed rows next to them."
    )
    peak_tflops: PeakTflops = Field(
        default_factory=dict,
        description="Peak of one GPU by dtype, in TFLOP/s without sparsity; if omitted, looked up by the GPU's name.",
    )

    def timing(self) -> TimingConfig:
        """Return the timing of the matrix's cells.

        `paired_cells` of expansion/expand.py replaces TO_BE_PAIRED by the name of a pair.
        """
        documents = tuple(self.segment_slope.documents) if self.segment_slope else ()
        return TimingConfig(
            documents=documents,
            unpacked=self.packed_slower is not None,
            full_rows=self.full_rows,
            rounds=self.rounds,
            warmup=self.warmup or 0,
            tokens=(self.segment_slope.tokens or 0) if self.segment_slope else 0,
            turns=TO_BE_PAIRED if self.slower_than else "",
        )

    def bounds(self) -> dict[str, float]:
        """Return the value of each bound, for the checks that are switched on."""
        slope, packed = self.segment_slope, self.packed_slower
        requested = {"segment_slope": slope.bound, "rotary_slope": slope.rotary_bound} if slope else {}
        requested |= {"packed_slower": packed.bound} if packed else {}
        requested |= {"slower_than_history": self.history.slower} if self.history else {}
        return requested | ({"slower_than": self.slower_than.bound} if self.slower_than else {})

    def baseline_request(self) -> BaselineRequest | None:
        """Return the runs to compare with; None for none."""
        return BaselineRequest(runs=self.history.runs, since=self.history.since) if self.history else None

    def base(self) -> str:
        """Return the stack to time the other one against; empty for none."""
        return self.slower_than.stack if self.slower_than else ""


def throughput_as_written(timing: TimingConfig, bounds: Mapping[str, float]) -> dict[str, Any]:
    """Return the section as in a matrix file, without comparisons with another stack or with earlier runs.

    `bounds`: those to write; a check without one has the default when the file is read.
    """
    written: dict[str, Any] = {"rounds": timing.rounds}
    written |= {"warmup": timing.warmup} if timing.warmup else {}
    written |= {"full_rows": True} if timing.full_rows else {}
    if timing.documents:
        names = {"bound": "segment_slope", "rotary_bound": "rotary_slope"}
        written["segment_slope"] = {key: bounds[name] for key, name in names.items() if name in bounds}
        written["segment_slope"]["documents"] = list(timing.documents)
        written["segment_slope"] |= {"tokens": timing.tokens} if timing.tokens else {}
    if timing.unpacked:
        written["packed_slower"] = {"bound": bounds["packed_slower"]} if "packed_slower" in bounds else True
    return written


Name = Annotated[str, AfterValidator(safe_name), Field(json_schema_extra={"pattern": f"^{SAFE_NAME}$"})]


def _documents_section(name: str, doc: str, mode: Any, default: Any = ...) -> type[Section]:
    keys = keys_of(DocumentsConfig)
    named = KEYS_OF_MODE[default if default is not ... else mode.__args__[0]]
    return model_with(name, doc, [keys[key] for key in named], mode=(mode, default))


AdversarialDocuments = _documents_section(
    "AdversarialDocuments",
    "The built-in mix of lengths that exposes most known packing bugs; in `uncut` no document is truncated, in `plain` "
    "none is masked either; `multi_turn` and `delimited` are `uncut` with prompts and answers in turn, `images` is "
    "`plain` with images.",
    Literal[MIXES],
    MIXES[0],
)
DistributionDocuments = _documents_section(
    "DistributionDocuments",
    "Random lengths, as Megatron-LM's mock SFT dataset draws them.",
    Literal["distribution"],
)
FileDocuments = _documents_section(
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
        default="full", description="Which of the allowed cells run: [all or a covering selection](matrix.md#select)."
    )
    args: str | dict[str, Any] = Field(
        default_factory=dict,
        description="[Arguments of upstream's trainer](trainers.md#arguments), for every cell: a mapping or a text.",
    )
    profiles: dict[str, str | dict[str, Any]] = Field(
        default_factory=dict,
        description="Arguments by name, for the axis `args`: a mapping, or the flags of a run as text.",
    )
    launch: model_of(Launch) = Field(  # type: ignore[valid-type]
        default_factory=Launch, description="How cells run."
    )
    checks: ChecksSection = Field(default_factory=ChecksSection, description="Bounds of the checks, and canaries.")
    xfail: list[model_of(XFail)] = Field(  # type: ignore[valid-type]
        default_factory=list, description="Known failures."
    )
    may_reject: list[model_of(MayReject)] = Field(  # type: ignore[valid-type]
        default_factory=list, description="Cells that a checkout may [lack something for](matrix.md#may_reject)."
    )
    stacks: dict[str, RecipeName | StackLayer | Annotated[list[RecipeName | StackLayer], Field(min_length=1)]] = Field(
        default_factory=dict,
        description="[Software under test](stacks.md), by name: a layer or a list of layers, the top layer first; a "
        "[recipe](stacks.md#recipes) may take the place of a layer.",
        json_schema_extra={"propertyNames": {"pattern": f"^{SAFE_NAME}$"}},
    )
    origin: model_of(Origin) | None = Field(  # type: ignore[valid-type]
        default=None, description="What became of the training run that `harness init --from` read."
    )
    cluster: Cluster = Field(
        default="local",
        description="Where cells run: `local` is this machine, any other name a [cluster profile](clusters.md); "
        "a path is relative to the matrix file.",
    )


LISTS = "lists"  # the key of lists by name
LengthsReader = Callable[[str], tuple[int, ...]]


def parse_documents(section: Any, problems: Problems, read_lengths: LengthsReader) -> DocumentsConfig | None:
    """Return the checked section; None after adding its problems.

    `read_lengths` returns the lengths in a file, or raises InputError.
    """
    path: KeyPath = ("documents",)
    values = problems.canonical(section, {}, path, "e.g. documents: {mode: adversarial}")
    if values is None:
        return None
    values.pop(LISTS, None)
    mode = values.get("mode", "adversarial")
    if not isinstance(mode, str) or mode not in DOCUMENT_MODES:
        problems.add((*path, "mode"), "unknown mode", found=shown(mode), allowed=", ".join(DOCUMENT_MODES))
        return None
    checked = problems.validate(DOCUMENT_MODES[mode], {**values, "mode": mode}, path)
    documents = dataclass_of(DocumentsConfig, checked) if checked else None
    if documents and not documents.min_seq_len <= documents.mean_seq_len <= documents.max_seq_len:
        sizes = f"{documents.min_seq_len}, {documents.mean_seq_len}, {documents.max_seq_len}"
        problems.add(path, "min_seq_len <= mean_seq_len <= max_seq_len does not hold", found=sizes)
    return _with_lengths_of_file(documents, problems, read_lengths) if documents and mode == "file" else documents


def parse_lists(
    section: Any, used: Mapping[str, int | None], problems: Problems, read_lengths: LengthsReader
) -> dict[str, DocumentsConfig]:
    """Return the lists of lengths that the section names, for the axis `documents`.

    `used`: the values of the axis, each with its line; an unused list and an unknown value are problems.
    """
    path: KeyPath = ("documents", LISTS)
    lists = section.get(LISTS, {}) if isinstance(section, Mapping) else {}
    if not isinstance(lists, Mapping):
        problems.add(path, "must be a mapping of names to lists of lengths, or to CSV files", found=shown(lists))
        return {}
    parsed: dict[str, DocumentsConfig] = {}
    for name, value in lists.items():
        where = (*path, str(name))
        if not isinstance(name, str) or not re.fullmatch(SAFE_NAME, name) or name in MODES:
            problems.add(
                where,
                "cannot be a name",
                hint=f"at most 64 letters, digits, '.', '_' and '-'; no mode: {', '.join(MODES)}",
            )
        elif name not in used:
            if not problems.within("matrix"):
                problems.add(where, "no row of the matrix uses this list", hint="add it to the axis 'documents'")
        else:
            key = "path" if isinstance(value, str) else "lengths"
            checked = problems.validate(FileDocuments, {"mode": "file", key: value}, where)
            documents = dataclass_of(DocumentsConfig, checked) if checked else None
            documents = _with_lengths_of_file(documents, problems, read_lengths, where) if documents else None
            parsed |= {name: replace(documents, name=name)} if documents else {}
    for name, line in used.items():
        if name not in lists and name not in MIXES:
            allowed = [*MIXES, *map(str, lists)]
            near = difflib.get_close_matches(name, allowed, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"define it under documents.{LISTS}"
            message = "no such mix, or list of lengths"
            problems.add_at(
                line, ("matrix", "documents"), message, found=repr(name), allowed=", ".join(allowed), hint=hint
            )
    return parsed


def _with_lengths_of_file(
    documents: DocumentsConfig, problems: Problems, read_lengths: LengthsReader, where: KeyPath = ("documents", "path")
) -> DocumentsConfig | None:
    """Return the configuration with the lengths of its file.

    None after adding its problems. `where`: the key of the file.
    """
    if (documents.path is None) == (not documents.lengths):
        problems.add(("documents",), "mode file needs either path or lengths", hint="give exactly one of them")
        return None
    if documents.path is None:
        return documents
    try:
        # Without the path: a cell's id depends on the lengths, not on where they are stored.
        return replace(documents, path=None, lengths=read_lengths(documents.path))
    except InputError as error:
        for problem in error.problems:
            message = f"{documents.path}{f' line {problem.line}' if problem.line else ''}: {problem.message}"
            details = {"found": problem.found, "allowed": problem.allowed, "hint": problem.hint}
            problems.add(where, message, **details)
        return None


MODEL_PARTS = parts_of(ModelConfig)


def parse_model(values: Any, problems: Problems) -> ModelConfig | None:
    """Return the `model:` section; None after adding all its problems."""
    path: KeyPath = ("model",)
    model = problems.validate(ModelConfig, values, path)
    for key, message in model_problems(model) if model else ():
        problems.add((*path, *key.split(".")), message)
    return model


def model_problems(model: ModelConfig) -> list[tuple[str, str]]:
    """Return the reasons why no layout can run a model: (key, message with the arithmetic)."""
    reasons = []
    if model.head_size is None and model.hidden % model.heads:
        reasons.append(("heads", f"hidden {model.hidden} is not divisible by heads {model.heads}; set head_size too"))
    else:
        reasons += position_problems(model)
    if not model.mla and model.heads % model.kv_heads:
        reasons.append(("kv_heads", f"heads {model.heads} is not divisible by kv_heads {model.kv_heads}"))
    if model.biases and model.qkv_bias:
        reasons.append(("qkv_bias", "biases already gives queries, keys and values one; leave one of the two out"))
    reasons += pattern_problems(model)
    moe, mla = model.moe, model.mla
    if moe and len(kinds := moe.at_layers(model.layers)) != model.layers:
        reasons.append(("moe.layer_freq", f"lists {len(kinds)} layers, and layers is {model.layers}"))
    elif moe and not any(kinds):
        reasons.append(("moe.layer_freq", "no layer has experts; leave out moe, or set a 1"))
    if moe and model.pattern and moe.layer_freq != EVERY:
        reasons.append(("moe.layer_freq", f"pattern {model.pattern!r} already says which layers have experts"))
    if moe and moe.topk > moe.experts:
        reasons.append(("moe.topk", f"topk {moe.topk} is more than experts {moe.experts}"))
    if mla and mla.qk_pos_emb_head_dim % 2:
        size = mla.qk_pos_emb_head_dim
        reasons.append(("mla.qk_pos_emb_head_dim", f"rotary positions need an even size, and {size} is odd"))
    if model.vision:
        reasons += vision_problems(model, model.vision)
    return reasons


def position_problems(model: ModelConfig) -> list[tuple[str, str]]:
    """Return the reasons why no layout can run a model with its positions."""
    if model.position_embedding != ROTARY:
        keys, kind = keys_of(ModelConfig), model.position_embedding
        return [
            (name, f"is for rotary positions, and position_embedding is {kind}")
            for name in OF_ROTARY
            if getattr(model, name) != keys[name].default
        ]
    reasons = []
    turned = int(model.head * model.rotary_percent)
    sizes = f"{model.hidden} / {model.heads} = {model.head}" if model.head_size is None else str(model.head)
    if model.rotary_percent < 1 and (turned % 2 or not turned):
        text = f"rotary positions turn an even number of elements: {model.rotary_percent:g} x {model.head} = {turned}"
        reasons.append(("rotary_percent", text))
    elif turned % 2:
        name = "heads" if model.head_size is None else "head_size"
        reasons.append((name, f"rotary positions need an even head size: {sizes}"))
    if model.no_rope_freq and model.layers % model.no_rope_freq:
        text = f"layers {model.layers} is not divisible by no_rope_freq {model.no_rope_freq}, as upstream asks"
        reasons.append(("no_rope_freq", text))
    return reasons


def vision_problems(model: ModelConfig, vision: VisionConfig) -> list[tuple[str, str]]:
    """Return the reasons why no layout can run a model with its vision."""
    reasons = []
    half, together = model.head // 2, sum(vision.sections)
    if together != half:
        named = " + ".join(map(str, vision.sections))
        reasons.append(("vision.sections", f"half of the head size is {half}, and {named} = {together}"))
    if vision.hidden % (4 * vision.heads):
        reasons.append(
            (
                "vision.heads",
                f"hidden {vision.hidden} is not divisible by 4 x heads {vision.heads}, as rotary positions need",
            )
        )
    if vision.deepstack > vision.layers:
        reasons.append(
            ("vision.deepstack", f"the tower has {vision.layers} layers, and deepstack is {vision.deepstack}")
        )
    return reasons


def pattern_problems(model: ModelConfig) -> list[tuple[str, str]]:
    """Return the reasons why no layout can run a model with its pattern."""
    layers = layers_of(model.pattern)
    if not layers:
        return []
    reasons = []
    if model.layers != len(layers):
        reasons.append(("layers", f"pattern {model.pattern!r} has {len(layers)} layers, and layers is {model.layers}"))
    if (EXPERTS in layers) != (model.moe is not None):
        reasons.append(("moe", f"pattern {model.pattern!r} and moe do not agree on whether there are experts"))
    return reasons


def shown_part(part: Mapping[str, Any] | Any) -> str:
    """Return the text of a model part (`moe`, `mtp`, `mla`) in tables."""
    return "none" if part is None else str(part)
