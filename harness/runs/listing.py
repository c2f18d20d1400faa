"""The runs under a folder and how far each is, from a few files; plans and records are not read.

For the folder's index also unfinished and unreadable runs, and since when a matrix is red.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from harness.core.run.run_dir import LinkError, RunDir, text_of
from harness.core.serialization import loads
from harness.infra.files import is_file
from harness.runs.lock import launcher_of

_STARTED = re.compile(r".*-(\d{8}T\d{6}Z)-[0-9a-f]+")
_NAMED_FAILURES = 3  # failing cells that a run names
_REPORTS = ("report.md", "junit.xml", "report.json", "compare.html")
State = Literal["finished", "running", "interrupted", "unreadable"]


@dataclass(frozen=True, kw_only=True)
class ListedRun:
    """A run and how far it is."""

    run_id: str
    started: str  # as in the run's id; empty if the folder was renamed
    state: str  # running | finished | interrupted
    verdict: str = ""  # of a finished run
    faults: list[str] = field(default_factory=list)  # that were injected into a finished run
    counts: dict[str, int] = field(default_factory=dict)  # outcome -> cells of a finished run, those above 0
    partial: int = 0  # of the cells that passed, those of which some numbers were compared with nothing
    cells: int = 0  # folders of cells of a run that has not finished
    ended: int = 0  # of these, with a result

    @property
    def text(self) -> str:
        """Return e.g. "PASS: 42 PASS, 1 REJECTED", or "3 of 7 cells have ended"."""
        if self.state == "finished":
            note = " (fault injected)" if self.faults else ""
            notes = {"PASS": f" ({self.partial} in part)"} if self.partial else {}
            counts = ", ".join(f"{count} {name}{notes.get(name, '')}" for name, count in self.counts.items())
            return f"{self.verdict.upper()}{note}: {counts}"
        return f"{self.ended} of {self.cells} cells have ended"

    def jsonable(self) -> dict[str, Any]:
        """Return the run as JSON values."""
        return asdict(self)


def listing(run_parent: Path) -> list[ListedRun]:
    """Return every run directory below the folder, oldest first by start."""
    folders = [path.parent for path in run_parent.glob("*/plan.json")] if run_parent.is_dir() else []
    runs = [listed(RunDir(folder))[0] for folder in folders]
    return sorted(runs, key=lambda run: (run.started, run.run_id))


def listed(run: RunDir) -> tuple[ListedRun, dict[str, Any] | None]:
    """Return a run, and its report.json if it has finished."""
    named = _STARTED.fullmatch(run.root.name)
    base: dict[str, Any] = {"run_id": run.root.name, "started": named[1] if named else ""}
    running = False
    with suppress(LinkError):
        running = launcher_of(run) is not None
    if not running and (report := _report_json(run)):
        counts = {str(name): int(count) for name, count in report["counts"].items() if count}
        faults = list(map(str, report.get("faults") or ()))
        cells = report.get("cells")
        partial = sum(map(_in_part, cells if isinstance(cells, list) else ()))
        verdict = str(report["verdict"])
        return ListedRun(
            state="finished", verdict=verdict, counts=counts, partial=partial, faults=faults, **base
        ), report
    ended = Counter(any(cell.glob("attempt-*/result.json")) for cell in run.cells())
    state = "running" if running else "interrupted"
    return ListedRun(state=state, cells=ended.total(), ended=ended[True], **base), None


def _in_part(cell: Any) -> bool:
    lanes = cell.get("lanes") if isinstance(cell, dict) and cell.get("outcome") == "PASS" else None
    return isinstance(lanes, dict) and "partial" in lanes.values()


def _report_json(run: RunDir) -> dict[str, Any] | None:
    """Return report.json; None if there is none that can be read."""
    with suppress(LinkError, OSError, ValueError, RecursionError):
        report = loads(text_of(run.root / "report.json"))
        if isinstance(report, dict) and isinstance(report.get("counts"), dict) and "verdict" in report:
            return report
    return None


@dataclass(frozen=True, kw_only=True)
class FailingCell:
    """A cell that failed or could not be decided."""

    id: str
    message: str  # of its first finding, else its reason


@dataclass(frozen=True, kw_only=True)
class IndexedRun:
    """A run as the folder's index shows it."""

    run_id: str  # the name of its folder
    matrix: str
    started: str  # as in the run's id, 20261125T101405Z; empty if the folder was renamed
    state: State
    verdict: str = ""  # pass, fail or error, of a finished run
    faults: Sequence[str] = ()  # that were injected into a finished run
    counts: Mapping[str, int] = field(default_factory=dict)  # outcome -> cells, those above 0
    wall_s: float | None = None
    failing: Sequence[FailingCell] = ()  # the first ones, FAIL before ERROR
    more: int = 0  # failing cells that are not named
    text: str = ""  # how far an unfinished run is
    files: Sequence[str] = ()  # reports that exist in its folder, without report.html
    has_page: bool = False

    @property
    def label(self) -> str:
        """Return the verdict of a finished run, else the state."""
        return self.verdict if self.state == "finished" else self.state

    @property
    def when(self) -> str:
        """Return e.g. "2026-11-25 10:14", or '' if unknown."""
        stamp = self.started
        return f"{stamp[:4]}-{stamp[4:6]}-{stamp[6:8]} {stamp[9:11]}:{stamp[11:13]}" if stamp else ""


@dataclass(frozen=True, kw_only=True)
class IndexedMatrix:
    """A matrix with its finished runs. Unfinished and unreadable ones, and those with a fault, decide nothing."""

    name: str
    runs: int
    last: IndexedRun
    red_since: IndexedRun | None  # the first run of the unbroken series of failures that goes on; None: the last passed
    last_green: IndexedRun | None


def indexed_runs(folder: Path) -> list[IndexedRun]:
    """Return every run directory in the folder, also one of which only the reports were kept; the newest first."""
    folders = {path.parent for name in ("plan.json", "report.json") for path in folder.glob(f"*/{name}")}
    runs = [_indexed(path) for path in folders]
    return sorted(runs, key=lambda run: (run.started, run.run_id), reverse=True)


def matrices(runs: Iterable[IndexedRun]) -> list[IndexedMatrix]:
    """Return the matrices of finished runs, failing ones first. `runs`: the newest first."""
    groups: dict[str, list[IndexedRun]] = {}
    for run in runs:
        if run.state == "finished" and not run.faults:
            groups.setdefault(run.matrix, []).append(run)
    indexed = []
    for name, members in groups.items():
        decided = [run for run in members if run.verdict in ("pass", "fail")]
        red = 0
        while red < len(decided) and decided[red].verdict == "fail":
            red += 1
        indexed.append(
            IndexedMatrix(
                name=name,
                runs=len(members),
                last=members[0],
                red_since=decided[red - 1] if red else None,
                last_green=decided[red] if red < len(decided) else None,
            )
        )
    return sorted(indexed, key=lambda matrix: (matrix.red_since is None, matrix.last.verdict == "pass", matrix.name))


def _indexed(folder: Path) -> IndexedRun:
    run, report = listed(RunDir(folder))
    files = [name for name in _REPORTS if is_file(folder / name)]
    state: State = "running" if run.state == "running" else "finished" if report else "interrupted"
    if state == "interrupted" and "report.json" in files:
        state = "unreadable"
    report = report or {}
    failing = _failing_cells(report)
    return IndexedRun(
        run_id=folder.name,
        matrix=str(report.get("matrix") or _name_of(folder.name)),
        started=run.started,
        state=state,
        verdict=run.verdict,
        faults=run.faults,
        counts=run.counts,
        wall_s=_wall_s(report.get("timing")),
        failing=failing[:_NAMED_FAILURES],
        more=len(failing[_NAMED_FAILURES:]),
        text=run.text if state in ("running", "interrupted") else "",
        files=files,
        has_page=is_file(folder / "report.html"),
    )


def _name_of(folder: str) -> str:
    """Return the matrix in a run's id: "smoke" of "smoke-20261125T101405Z-1113"."""
    name = folder.rsplit("-", 2)
    return name[0] if len(name) == 3 else folder


def _wall_s(timing: Any) -> float | None:
    with suppress(TypeError, ValueError, AttributeError):
        return float(timing["wall_s"]) if "wall_s" in timing else None
    return None


def _failing_cells(report: Mapping[str, Any]) -> list[FailingCell]:
    """Return cells that failed or could not be decided; parts of another shape are left out."""
    cells = report.get("cells")
    known = [cell for cell in cells if isinstance(cell, Mapping)] if isinstance(cells, list) else []
    return [
        FailingCell(id=str(cell.get("id", "")), message=_message(cell))
        for outcome in ("FAIL", "ERROR")
        for cell in known
        if cell.get("outcome") == outcome
    ]


def _message(cell: Mapping[str, Any]) -> str:
    findings = cell.get("findings")
    first = findings[0] if isinstance(findings, list) and findings else {}
    message = first.get("message") if isinstance(first, Mapping) else None
    return str(message or cell.get("reason") or "")
