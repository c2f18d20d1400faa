"""The report as a value: what report.json holds and every renderer shows. Field names are the contract."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from harness.core.cell.layout import Coordinates, Layout
from harness.core.cell.timing import GpuState
from harness.core.outcomes import (
    Domain,
    Finding,
    KnownFailure,
    Lane,
    LaneVerdict,
    Outcome,
    Rejection,
    Retry,
    Role,
    RunVerdict,
    Severity,
    StrEnum,
    exit_code,
)
from harness.core.packing.fields import NOT_READ
from harness.core.run.provenance import Provenance
from harness.core.run.records import CellRole
from harness.core.run.run_plan import Origin, Selection
from harness.core.stack import DEFAULT
from harness.core.text import counted, noun
from harness.core.tolerances import Bound, NoiseFloor

_MAX_FAULTS = 3  # that are named
NOT_JUDGED = "not judged"  # in the origin of the bound of a ratio that is only shown
EARLIER_RUNS = "over earlier runs"  # the ratio whose verdict its interval alone does not decide
REPORT_VERSION = 2  # schema_version of report.json; in 1, provenance had its stacks as prose


MetadataState = Literal["ok", "missing", "differs", "unpacked", "no-record"]


class ChangeKind(StrEnum):
    """How a cell changed between two runs, in the order that reports show them."""

    NEWLY_FAILING = "newly failing"
    UNJUDGED = "failing, not judged before"
    STILL_FAILING = "still failing"
    UNDECIDED = "undecided"
    FLAKY = "flaky"
    KNOWN_FAILURE = "known failure"
    NO_LONGER_RUN = "no longer run"
    FIXED = "fixed"
    NEW = "new"
    GONE = "gone"
    UNCHANGED = "unchanged"


@dataclass(frozen=True, kw_only=True)
class RankView:
    """The packed params that one rank's attention layers received for the first micro-batch."""

    rank: int
    place: Coordinates
    state: MetadataState
    cu_seqlens: list[int] | None
    max_seqlen: int | None
    layers: list[int] = field(default_factory=list)  # global numbers of the layers on this rank
    ended: str = "completed"


@dataclass(frozen=True, kw_only=True)
class TimedRatio:
    """Ratio of two times measured in the same rounds, with its confidence interval."""

    what: str  # e.g. "whole step, 256 documents over 4"
    median: float
    low: float
    high: float
    rounds: int
    bound: Bound
    verdict: str  # slower or faster (the whole interval is beyond the bound), no difference, or undecided and why

    @property
    def text(self) -> str:
        """E.g. "1.06 times (0.973 to 1.14 in 7 rounds), bound 1.25: no difference"."""
        interval = f"{self.low:.3g} to {self.high:.3g} in {self.rounds} rounds"
        return f"{self.median:.3g} times ({interval}), bound {self.bound.value:g}: {self.verdict}"


@dataclass(frozen=True, kw_only=True)
class LoadRate:
    """Rates per rank of one load of the timing leg that is a forward and backward pass of the model."""

    load: str  # packed | unpacked | full | step | turn
    documents: int  # per pack, for `step`; else 0
    seconds: float  # median of the rounds
    real_tokens_per_s: float
    slots_per_s: float
    tflops_per_s: float
    mfu: float | None = None


@dataclass(frozen=True, kw_only=True)
class Throughput:
    """Medians over the timed steps. Rates are per rank (GPU or CPU process), times in seconds."""

    real_tokens_per_s: float | None = None
    slots_per_s: float | None = None
    efficiency: float | None = None  # real tokens / slots
    tflops_per_s: float | None = None  # 1e12 operations on real tokens per second, forward and backward
    mfu: float | None = None  # tflops_per_s over peak_tflops
    peak_tflops: float | None = None  # of the device for the cell's dtype, without sparsity
    peak_origin: str = ""  # where peak_tflops is from, or why it is not known
    step_p50_s: float | None = None
    step_p95_s: float | None = None  # None with a single timed step
    step_busy_s: float | None = None  # as step_p50_s, but on a CPU without waiting; there compared with earlier runs
    packed_s: float | None = (
        None  # median pass of the timing leg over the step's documents; on a GPU, compared with earlier runs
    )
    peak_memory_bytes: int | None = None  # of the rank with the most: allocated on a GPU, resident on a CPU
    peak_reserved_bytes: int | None = None  # of the rank with the most: reserved by torch's allocator on a GPU
    memory_limit_bytes: int | None = None  # of a rank: its GPU's memory, or its share of the machine's
    warmup_rounds: int = 0  # of the timing leg
    gpu_states: list[GpuState] = field(default_factory=list)  # of rank 0's GPU, beside the timing leg
    loads: list[LoadRate] = field(default_factory=list)  # of the timing leg
    ratios: list[TimedRatio] = field(default_factory=list)  # of the timing leg
    step_times_s: list[float] = field(default_factory=list)  # of the steps after the first; wall clock
    rounds_s: dict[str, list[float]] = field(default_factory=dict)  # of the timing leg, by load


@dataclass(frozen=True, kw_only=True)
class LossCurve:
    """Mean loss per token and pre-clip gradient norm per step, of the cell and what it is compared with.

    The bounds are those by which the numerics lane judged (relative differences); None if it did not judge.
    """

    loss: list[float] = field(default_factory=list)
    control_loss: list[float] = field(default_factory=list)
    grad_norm: list[float] = field(default_factory=list)
    control_grad_norm: list[float] = field(default_factory=list)
    loss_bound: Bound | None = None
    grad_norm_bound: Bound | None = None


@dataclass(frozen=True, kw_only=True)
class FailureView:
    """The first rank that failed, for the report."""

    rank: int
    place: Coordinates
    ended: str
    message: str
    traceback: str
    log: str  # path relative to the run directory
    failure_class: str = ""  # name of a row of docs/failures.md
    title: str = ""  # of the class
    domain: Domain = Domain.UNKNOWN
    role: Role = Role.ROOT
    retry: Retry = Retry.UNKNOWN
    advice: str = ""  # what to do next, in one sentence
    evidence: str = ""  # the text or state by which the class was recognised
    follows_from: str = ""  # the check whose finding explains the failure; then `advice` is empty


@dataclass(frozen=True, kw_only=True)
class Weight:
    """How much evidence a verdict rests on."""

    records: int = 0  # of ranks
    legs: int = 0  # metadata, training, canary and timing legs that every rank completed
    steps: int = 0  # of the training leg, on every rank
    numbers: int = 0  # computed by ranks; all were checked
    reference: str = ""  # what numbers were compared with; empty: nothing
    not_compared: str = ""  # which numbers were compared with nothing, and why
    not_read: list[str] = field(default_factory=list)  # what upstream hands to the model, and no check reads: names
    smallest_seen: dict[str, float] = field(default_factory=dict)  # quantity -> bound of its relative error at step 0

    @property
    def smallest_text(self) -> str:
        """E.g. "relative errors above 5e-06 in document_loss, step_loss; 1e-05 in parameter_gradient"."""
        by_bound: dict[float, list[str]] = {}
        for name, bound in self.smallest_seen.items():
            by_bound.setdefault(bound, []).append(name)
        parts = [f"{bound:.2g} in {', '.join(names)}" for bound, names in sorted(by_bound.items())]
        return f"relative errors above {'; '.join(parts)}" if parts else ""

    @property
    def not_read_text(self) -> str:
        """E.g. "attention_mask (with a causal mask type kernels do not read it)"."""
        return "; ".join(f"{name} ({NOT_READ.get(name, 'unknown to the harness')})" for name in self.not_read)

    @property
    def text(self) -> str:
        """E.g. "8 rank records, 3 legs, 2 steps, 41,216 numbers"."""
        named = ((self.records, "rank record"), (self.legs, "leg"), (self.steps, "step"), (self.numbers, "number"))
        counts = ", ".join(f"{count:,} {noun(count, name)}" for count, name in named)
        compared = f"compared with {self.reference}" if self.reference.startswith("the control") else ""
        return "; ".join(filter(None, (counts, compared, self.not_compared)))


@dataclass(frozen=True, kw_only=True)
class ReportCell:
    id: str
    axes: dict[str, Any]
    layout: Layout
    outcome: Outcome
    lanes: dict[Lane, LaneVerdict]
    findings: list[Finding]  # most informative first
    timing: dict[str, float]  # wall_s, steps_s, overhead_s
    reproduce: str  # the command that runs just this cell
    role: CellRole = "cell"
    group: str = ""
    control: str | None = None
    reason: str = ""  # of ERROR, XFAIL, XPASS
    known: KnownFailure = KnownFailure.NONE
    throughput: Throughput = field(default_factory=Throughput)
    curve: LossCurve = field(default_factory=LossCurve)
    ranks: list[RankView] = field(default_factory=list)
    failure: FailureView | None = None
    canaries: dict[str, str] = field(default_factory=dict)  # canary -> "ran", "did not end", or why it does not apply
    evidence: Weight = field(default_factory=Weight)  # what the verdict rests on
    attempts: int = 1
    fault: str = ""  # that was injected into the cell
    line: int | None = None  # matrix line
    scope: str = ""  # of wrong numbers: on one rank already, or only in this layout; empty: nothing says so

    @property
    def stack(self) -> str:
        return str(self.axes.get("stack", DEFAULT))

    @property
    def errors(self) -> list[Finding]:
        """The findings that fail a lane."""
        return [finding for finding in self.findings if finding.severity is Severity.ERROR]

    @property
    def first(self) -> Finding | None:
        """The finding that explains the cell best: an error if there is one."""
        return next(iter(self.errors or self.findings), None)

    @property
    def partial(self) -> str:
        """Which numbers of a partial lane were compared with nothing; empty if no lane is partial."""
        return self.evidence.not_compared if LaneVerdict.PARTIAL in self.lanes.values() else ""


@dataclass(frozen=True, kw_only=True)
class ReportRejected:
    id: str
    axes: dict[str, Any]
    rule: str
    reason: str  # with the arithmetic
    rejections: list[Rejection] = field(default_factory=list)
    line: int | None = None

    @property
    def stack(self) -> str:
        return str(self.axes.get("stack", DEFAULT))


@dataclass(frozen=True, kw_only=True)
class CellSince:
    """How a cell changed since the previous run that decided it."""

    id: str
    change: ChangeKind
    since: str  # start of the first run of its failure, current or (fixed) past; ISO
    since_run: str
    good: str  # start of the last run before that failure; empty: none is known
    good_run: str
    between: list[str] = field(default_factory=list)  # what changed in its stack when it broke, was fixed, or last
    earlier_check: str = ""  # that failed first in its last run, where another one does now

    @property
    def text(self) -> str:
        """Since when it fails, the last good run, whether another check failed before, what changed."""
        word = "failed" if self.change is ChangeKind.FIXED else "failing"
        parts = [f"{word} since {self.since} (run {self.since_run})"]
        parts.append(f"last good {self.good} (run {self.good_run})" if self.good_run else "no passing run known")
        parts += [f"in its last run {self.earlier_check} failed first"] if self.earlier_check else []
        if self.good_run or self.between:
            parts.append(f"changed in between: {'; '.join(self.between) or 'nothing recorded'}")
        return "; ".join(parts)


@dataclass(frozen=True, kw_only=True)
class Since:
    """Changes since the previous run of the same matrix, from the history as it was when this run ended."""

    run_id: str
    started: str
    cells: list[CellSince] = field(default_factory=list)  # those that fail, or failed before
    undecided: int = 0  # cells of this run that ended as ERROR

    @property
    def text(self) -> str:
        """ "Since run X of 2026-08-21T10:15:30Z: 1 newly failing, 2 still failing." """
        names = list(dict.fromkeys(cell.change for cell in self.cells))
        counts = [f"{sum(cell.change == name for cell in self.cells)} {name}" for name in names]
        counts += [f"{self.undecided} undecided"] if self.undecided else []
        return f"Since run {self.run_id} of {self.started}: {', '.join(counts) or 'no cell changed, none fails'}."


@dataclass(frozen=True, kw_only=True)
class Report:
    run_id: str
    matrix: str
    matrix_file: str
    verdict: RunVerdict
    counts: dict[Outcome, int]
    provenance: Provenance
    timing: dict[str, float]  # wall_s and other measured times
    cells: list[ReportCell]
    rejected: list[ReportRejected]
    selection: Selection | None = None  # of the cells that may run; None: all
    noise: dict[str, dict[str, NoiseFloor]] = field(default_factory=dict)  # measured, by control and bound
    since: Since | None = None  # None: no earlier run is known
    problems: list[str] = field(default_factory=list)  # why the run as a whole is undecided, unless a cell failed
    origin: Origin | None = None  # the training run that the matrix was written from
    faults: list[str] = field(default_factory=list)  # injected ones; the verdict is then not on the code under test
    schema_version: int = REPORT_VERSION

    @property
    def headline(self) -> str:
        """The verdict in capitals: "FAIL", or "FAIL (fault injected)"."""
        return f"{self.verdict.upper()} (fault injected)" if self.faults else self.verdict.upper()

    @property
    def counts_text(self) -> str:
        """The number of cells of each outcome: "83 PASS (24 in part), 7 XFAIL"."""
        partial = sum(bool(cell.partial) for cell in self.cells if cell.outcome is Outcome.PASS)
        notes = {Outcome.PASS: f" ({partial} in part)"} if partial else {}
        named = ((outcome, self.counts.get(outcome)) for outcome in Outcome)
        return ", ".join(f"{count} {outcome.value}{notes.get(outcome, '')}" for outcome, count in named if count)

    @property
    def faults_text(self) -> str:
        """What was injected where, whether it was seen, and what that means; empty without a fault."""
        if not self.faults:
            return ""
        broken = [cell for cell in self.cells if cell.fault]
        seen = sum(cell.outcome is not Outcome.PASS for cell in broken)
        names = ", ".join(self.faults) if len(self.faults) <= _MAX_FAULTS else f"{len(self.faults)} faults"
        text = f"Injected on purpose: {names}, in {counted(len(broken), 'cell')} of {len(self.cells)}"
        text += f", of which {seen} did not pass. This says nothing about the code under test."
        return text if seen else f"{text} `harness explain {self.faults[0]}` names a layout that shows the fault."

    @property
    def exit_code(self) -> int:
        """0, 1 or 3."""
        return exit_code(self.verdict)
