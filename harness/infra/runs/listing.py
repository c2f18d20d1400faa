"""The runs under a folder and how far each is, from a few files; plans and records are not read."""

from __future__ import annotations

import re
from collections import Counter
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from harness.core.run.run_dir import LinkError, RunDir, text_of
from harness.core.serialization import loads
from harness.infra.runs.lock import launcher_of

_STARTED = re.compile(r".*-(\d{8}T\d{6}Z)-[0-9a-f]+")


@dataclass(frozen=True, kw_only=True)
class ListedRun:
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
        """E.g. "PASS: 42 PASS, 1 REJECTED", or "3 of 7 cells have ended"."""
        if self.state == "finished":
            note = " (fault injected)" if self.faults else ""
            notes = {"PASS": f" ({self.partial} in part)"} if self.partial else {}
            counts = ", ".join(f"{count} {name}{notes.get(name, '')}" for name, count in self.counts.items())
            return f"{self.verdict.upper()}{note}: {counts}"
        return f"{self.ended} of {self.cells} cells have ended"

    def jsonable(self) -> dict[str, Any]:
        return asdict(self)


def listing(run_parent: Path) -> list[ListedRun]:
    """Every run directory below the folder, oldest first by start."""
    folders = [path.parent for path in run_parent.glob("*/plan.json")] if run_parent.is_dir() else []
    runs = [listed(RunDir(folder))[0] for folder in folders]
    return sorted(runs, key=lambda run: (run.started, run.run_id))


def listed(run: RunDir) -> tuple[ListedRun, dict[str, Any] | None]:
    """A run, and its report.json if it has finished."""
    named = _STARTED.fullmatch(run.root.name)
    base: dict[str, Any] = {"run_id": run.root.name, "started": named[1] if named else ""}
    running = False
    with suppress(LinkError):
        running = launcher_of(run) is not None
    if not running and (report := _report(run)):
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


def _report(run: RunDir) -> dict[str, Any] | None:
    """report.json; None if there is none that can be read."""
    with suppress(LinkError, OSError, ValueError, RecursionError):
        report = loads(text_of(run.root / "report.json"))
        if isinstance(report, dict) and isinstance(report.get("counts"), dict) and "verdict" in report:
            return report
    return None
