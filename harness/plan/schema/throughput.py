"""`checks.throughput` of a matrix file: what is timed and judged. Other times are only measured and shown."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import date
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, Field, WithJsonSchema

from harness.core.cell.timing import DOCUMENTS, ROTARY_TOKENS, ROUNDS, STEP_TOKENS, WARMUP, TimingConfig
from harness.core.hardware import PEAK_DTYPES
from harness.core.run.run_plan import BaselineRequest
from harness.core.tolerances import DEFAULTS, LEAST_RUNS
from harness.plan.schema.section import Section

MOST_PER_PACK = 1024
TO_BE_PAIRED = "?"
_DEFAULT = DEFAULTS["fp32"]
MOST_FACTOR = 1_000  # slower than that is a hang
_Bound = Annotated[float, Field(gt=1, le=MOST_FACTOR, allow_inf_nan=False)]
_MOST_TOKENS = 2**20


def _dtypes(values: dict[str, float]) -> dict[str, float]:
    for name in values:
        if name not in PEAK_DTYPES:
            raise ValueError(f"{name} is not a dtype of cells; allowed: {', '.join(PEAK_DTYPES)}")
    return values


MOST_TFLOPS = 1e6  # of one GPU
PeakTflops = Annotated[
    dict[str, Annotated[float, Field(gt=0, le=MOST_TFLOPS, allow_inf_nan=False)]], AfterValidator(_dtypes)
]


def _dividing(values: list[int]) -> list[int]:
    """The values; ValueError unless packs of one length can hold each number of documents, in equal lengths."""
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

    bound: _Bound = Field(
        default=_DEFAULT.segment_slope.value,
        description="Largest ratio of step times, most documents over fewest.",
    )
    rotary_bound: _Bound = Field(
        default=_DEFAULT.rotary_slope.value, description="The same for the stack's rotary function alone."
    )
    documents: Annotated[
        list[Annotated[int, Field(ge=2, le=MOST_PER_PACK)]], Field(min_length=2), AfterValidator(_dividing)
    ] = Field(
        default=list(DOCUMENTS),
        description="Documents per pack, in ascending order, each a divisor of the last.",
    )
    tokens: Annotated[int, Field(ge=1, le=_MOST_TOKENS)] | None = Field(
        default=None,
        description=f"Tokens per pack, about; if omitted, {ROTARY_TOKENS} (rotary function) and {STEP_TOKENS} (step).",
    )


class PackedSlowerSection(Section):
    """Packed against unpacked, over the same documents."""

    bound: _Bound = Field(
        default=_DEFAULT.packed_slower.value, description="Largest ratio of times, packed over unpacked."
    )


class SlowerThanSection(Section):
    """Every cell against the same cell in a base stack, interleaved."""

    stack: str = Field(min_length=1, description="The base: the other stack of the axis `stack`.")
    bound: _Bound = Field(
        default=_DEFAULT.slower_than.value, description="Largest ratio of times, the other stack over the base."
    )


class HistorySection(Section):
    """Every cell against the green runs of the same cell on the same hardware."""

    runs: Annotated[int, Field(ge=LEAST_RUNS, le=100)] = Field(
        default=20, description="Number of newest runs that count."
    )
    slower: _Bound = Field(
        default=_DEFAULT.slower_than_history.value, description="Largest ratio of the time to their median."
    )
    since: Annotated[str, AfterValidator(_date)] = Field(
        default="", description="Date, in quotes: only runs from then on count; set it after accepting a slowdown."
    )


def _named(value: Any) -> Any:
    return {"stack": value} if isinstance(value, str) else value


def _switch(value: Any) -> Any:
    """The section for a boolean: `true` is the defaults, `false` switches it off."""
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
        """The timing of the matrix's cells; expansion/interleaving.py replaces TO_BE_PAIRED by the name of a pair."""
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
        """Bound -> value, for the checks that are switched on."""
        slope, packed = self.segment_slope, self.packed_slower
        requested = {"segment_slope": slope.bound, "rotary_slope": slope.rotary_bound} if slope else {}
        requested |= {"packed_slower": packed.bound} if packed else {}
        requested |= {"slower_than_history": self.history.slower} if self.history else {}
        return requested | ({"slower_than": self.slower_than.bound} if self.slower_than else {})

    def baseline_request(self) -> BaselineRequest | None:
        """The runs to compare with; None for none."""
        return BaselineRequest(runs=self.history.runs, since=self.history.since) if self.history else None

    def base(self) -> str:
        """The stack to time the other one against; empty for none."""
        return self.slower_than.stack if self.slower_than else ""


def as_written(timing: TimingConfig, bounds: Mapping[str, float]) -> dict[str, Any]:
    """The section as in a matrix file, without comparisons with another stack or with earlier runs.

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
