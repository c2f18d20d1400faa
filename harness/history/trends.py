"""What the history keeps of a report, rows of plain values per run, cell, finding and metric, and trends over runs."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date, datetime, timedelta, timezone
from typing import Any

from harness.core.outcomes import Finding, KnownFailure, Outcome
from harness.core.run.records import CellRole
from harness.core.run.report import Report, ReportCell, ReportRejected
from harness.core.serialization import dumps
from harness.core.stack import StackFacts
from harness.core.upstream import distributions
from harness.judge.stats.baseline import hardware_text

_SHOWN_HASH = 12  # digits
UNITS = {
    "step_p50_s": "s",
    "step_p95_s": "s",
    "step_busy_s": "s, on a CPU processor time of the slowest rank",
    "packed_s": "s, of the slowest rank, one pass of the timing leg",
    "wall_s": "s",
    "steps_s": "s",
    "tokens_per_s": "real tokens/s per rank",
    "slots_per_s": "slots/s per rank",
    "tflops_per_s": "TFLOP/s per rank",
    "mfu": "share of the device's peak",
    "efficiency": "real tokens / slots",
    "peak_memory_bytes": "bytes",
    "loss_first": "per token",
    "loss_last": "per token",
    "loss_drift": "relative to the control, the largest of all steps",
    "grad_norm_first": "before clipping",
    "grad_norm_last": "before clipping",
    "grad_norm_drift": "relative to the control, the largest of all steps",
}  # name of every metric -> unit


@dataclass(frozen=True, kw_only=True)
class FindingRow:
    """One finding of a cell in a run."""

    lane: str
    check: str
    severity: str
    fault_class: str
    message: str
    place: str  # JSON of Finding.where
    measured: str  # JSON
    bound: str  # JSON


@dataclass(frozen=True, kw_only=True)
class CellRow:
    """One cell of one run. `name` identifies a cell over time, since its id changes with its configuration."""

    cell_id: str
    name: str
    role: CellRole
    stack: str  # its name in the matrix
    version: str  # of the stack in this run: "megatron-core 0.19.2", "megatron-lm main = 1a2b3c4d5e6f"
    outcome: str
    reason: str = ""
    known: KnownFailure = KnownFailure.NONE
    attempts: int = 1
    line: int | None = None
    findings: tuple[FindingRow, ...] = ()
    metrics: Mapping[str, float] = field(default_factory=dict)  # keys of UNITS; NaN and infinity are values


@dataclass(frozen=True, kw_only=True)
class RunRow:
    """One run with its cells."""

    run_id: str
    matrix: str
    matrix_file: str
    started: str  # ISO, UTC, to the second: sorts as text
    verdict: str
    wall_s: float
    harness: str
    harness_commit: str
    host: str
    device: str  # outcomes are followed per device: "cpu", "NVIDIA H200"
    hardware: str  # times are compared per hardware: the device, for CPUs with model and number of cores
    cells: tuple[CellRow, ...] = ()


def run_row(report: Report) -> RunRow:
    """Return the rows of a report. ValueError if neither its provenance nor its run id has a start time."""
    facts = report.provenance
    devices = facts.devices or ["unknown"]
    all_cells: list[ReportCell | ReportRejected] = [*report.cells, *report.rejected]
    names = _names(all_cells)
    versions = {stack: _version(facts.software_of(stack)) for stack in {cell.stack for cell in all_cells}}
    cells = [_cell_row(cell, names[cell.id], versions[cell.stack]) for cell in report.cells]
    cells += [_rejected_row(cell, names[cell.id], versions[cell.stack]) for cell in report.rejected]
    return RunRow(
        run_id=report.run_id,
        matrix=report.matrix,
        matrix_file=report.matrix_file,
        started=_started(report),
        verdict=report.verdict,
        wall_s=report.timing.get("wall_s", 0.0),
        harness=facts.harness,
        harness_commit=facts.harness_commit,
        host=facts.host,
        device=" + ".join(devices),
        hardware=hardware_text(devices, facts.processors),
        cells=tuple(cells),
    )


def _names(cells: Sequence[ReportCell | ReportRejected]) -> dict[str, str]:
    """Return id -> the id without its hash, or the whole id where two cells of the run share that name."""
    count = Counter(cell.id.rpartition("-")[0] for cell in cells)
    return {cell.id: name if count[name := cell.id.rpartition("-")[0]] == 1 else cell.id for cell in cells}


def _started(report: Report) -> str:
    started = report.provenance.started
    stamp = re.search(r"\d{8}T\d{6}Z", report.run_id)
    if started:
        moment = datetime.fromisoformat(started.replace("Z", "+00:00"))
    elif stamp:
        moment = datetime.strptime(stamp.group(), "%Y%m%dT%H%M%SZ").replace(tzinfo=timezone.utc)
    else:
        raise ValueError(f"run {report.run_id} has no start time, neither in its provenance nor in its id")
    return moment.astimezone(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")


def _version(software: StackFacts) -> str:
    """Return the version of a stack as text: its checkouts, else its most specific distribution."""
    if software.checkouts:
        return ", ".join(checkout.text(_SHOWN_HASH) for checkout in software.checkouts)
    return _identifying(software.versions) or software.container or software.interpreter


def _identifying(packages: Mapping[str, str]) -> str:
    installed = [
        f"{name} {packages[name]}" for name in distributions() if packages.get(name, "not installed") != "not installed"
    ]
    return installed[0] if installed else ""


def _cell_row(cell: ReportCell, name: str, version: str) -> CellRow:
    return CellRow(
        cell_id=cell.id,
        name=name,
        role=cell.role,
        stack=cell.stack,
        version=version,
        outcome=cell.outcome.value,
        reason=cell.reason,
        known=cell.known,
        attempts=cell.attempts,
        line=cell.line,
        findings=tuple(_finding_row(finding) for finding in cell.findings),
        metrics=_metrics(cell),
    )


def _rejected_row(cell: ReportRejected, name: str, version: str) -> CellRow:
    return CellRow(
        cell_id=cell.id,
        name=name,
        role="cell",
        stack=cell.stack,
        version=version,
        outcome=Outcome.REJECTED.value,
        reason=f"{cell.rule}: {cell.reason}",
        line=cell.line,
    )


def _finding_row(finding: Finding) -> FindingRow:
    return FindingRow(
        lane=finding.lane.value,
        check=finding.check,
        severity=finding.severity.value,
        fault_class=finding.fault_class or "",
        message=finding.message,
        place=dumps(finding.where),
        measured=dumps(finding.measured),
        bound=dumps(finding.bound),
    )


def _metrics(cell: ReportCell) -> dict[str, float]:
    speed, curve = cell.throughput, cell.curve
    values: dict[str, float | None] = {
        "step_p50_s": speed.step_p50_s,
        "step_p95_s": speed.step_p95_s,
        "step_busy_s": speed.step_busy_s,
        "packed_s": speed.packed_s,
        "tokens_per_s": speed.real_tokens_per_s,
        "slots_per_s": speed.slots_per_s,
        "tflops_per_s": speed.tflops_per_s,
        "mfu": speed.mfu,
        "efficiency": speed.efficiency,
        "peak_memory_bytes": speed.peak_memory_bytes,
        "wall_s": cell.timing.get("wall_s"),
        "steps_s": cell.timing.get("steps_s"),
        "loss_drift": drift(curve.loss, curve.control_loss),
        "grad_norm_drift": drift(curve.grad_norm, curve.control_grad_norm),
    }
    for name, numbers in (("loss", curve.loss), ("grad_norm", curve.grad_norm)):
        if numbers:
            values |= {f"{name}_first": numbers[0], f"{name}_last": numbers[-1]}
    return {name: float(value) for name, value in values.items() if value is not None}


def drift(values: Iterable[float], control: Iterable[float]) -> float | None:
    """Return the largest |value - control| / |control| over the steps that both have; None if there are none.

    NaN if any of them is NaN; absolute where the control is 0.
    """
    distances = [abs(value - expected) / (abs(expected) or 1.0) for value, expected in zip(values, control)]
    if not distances:
        return None
    return math.nan if any(math.isnan(value) for value in distances) else max(distances)


# The first of these is shown for a day on which a cell had several outcomes.
WORST_FIRST = (
    Outcome.FAIL,
    Outcome.ERROR,
    Outcome.XPASS,
    Outcome.FLAKY,
    Outcome.XFAIL,
    Outcome.PASS,
    Outcome.NOT_RUN,
    Outcome.REJECTED,
)


@dataclass(frozen=True, kw_only=True)
class Day:
    """One cell on one day."""

    day: str  # ISO date
    outcome: str  # the worst of the day; empty: it did not run
    times: Mapping[str, int]  # outcome -> runs


@dataclass(frozen=True, kw_only=True)
class Point:
    """One run of one cell. Times in seconds, rates per rank, drift relative to the control; None: not measured."""

    started: str
    run_id: str
    version: str
    harness_commit: str
    hardware: str
    outcome: str
    reason: str
    step_p50_s: float | None
    tokens_per_s: float | None
    loss_drift: float | None
    new_version: bool  # differs from that of the point before


def days_between(first: str, last: str) -> list[str]:
    """Return ISO dates from the first to the last, both included."""
    start, end = date.fromisoformat(first), date.fromisoformat(last)
    return [(start + timedelta(days=number)).isoformat() for number in range((end - start).days + 1)]


def calendar_rows(rows: Iterable[Mapping[str, Any]], days: Sequence[str]) -> dict[int, list[Day]]:
    """Return series -> one Day per date of `days`, from rows of (series, day, outcome, times)."""
    by_series: dict[int, dict[str, dict[str, int]]] = {}
    for row in rows:
        by_series.setdefault(row["series"], {}).setdefault(row["day"], {})[row["outcome"]] = row["times"]
    return {series: [_day(day, by_day.get(day, {})) for day in days] for series, by_day in by_series.items()}


def _day(day: str, times: Mapping[str, int]) -> Day:
    return Day(
        day=day, outcome=next((outcome.value for outcome in WORST_FIRST if outcome.value in times), ""), times=times
    )


def points(rows: Iterable[Mapping[str, Any]]) -> list[Point]:
    """Return points in order of time, from rows with the newest first."""
    in_order: list[Point] = []
    names = set(Point.__dataclass_fields__) - {"new_version"}
    for row in reversed(list(rows)):
        new = bool(in_order) and row["version"] != in_order[-1].version
        in_order.append(Point(**{name: row[name] for name in names}, new_version=new))
    return in_order
