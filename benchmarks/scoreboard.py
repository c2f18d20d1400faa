"""Which real faults of upstream the harness shows, and what its verdicts on clean cells are: writes docs/scoreboard.md.

    .venv/bin/python benchmarks/scoreboard.py [--runs reports] [--run]

Every number is counted in the newest run of a matrix: a report under --runs, or what benchmarks/scoreboard_runs.json
keeps of an earlier one; the file is brought up to date, so that some matrices can be run again without the others.
scoreboard.toml names the matrices, the known faults and the cells that show each: `bad` cells must fail where their
matrix says (XFAIL), `good` cells, without the fault, must pass. --run first runs the matrices that have no run; most
need checkouts where they expect them. Exit code 1 when a fault is not shown, a known failure is in no list, a matrix
has no run, or a clean cell failed.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import tomllib

from harness.core.outcomes import Outcome
from harness.judge.report.model import Report
from harness.judge.report.render_json import read_report

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "scoreboard.md"
KEPT = ROOT / "benchmarks" / "scoreboard_runs.json"
FAILED = (Outcome.FAIL, Outcome.XPASS, Outcome.ERROR, Outcome.FLAKY)


@dataclass(frozen=True, kw_only=True)
class Fault:
    """A row of a list of known faults. `bad`, `good`: "matrix: pattern" of cell ids without their hash."""

    list: str
    id: str
    title: str
    fix: str = ""  # commit, pull request or issue
    bad: tuple[str, ...] = ()
    good: tuple[str, ...] = ()
    why_not: str = ""  # why no cell shows it
    gpu: bool = False  # needs a GPU, and does not count


@dataclass(frozen=True, kw_only=True)
class Score:
    fault: Fault
    why_not: str = ""  # empty: shown

    @property
    def matrices(self) -> str:
        return ", ".join(dict.fromkeys(f"`{entry.partition(':')[0]}`" for entry in self.fault.bad))


@dataclass(frozen=True, kw_only=True)
class Table:
    """What scoreboard.toml says."""

    matrices: tuple[str, ...]
    lists: Mapping[str, str]  # name of a list -> its heading
    faults: tuple[Fault, ...]


def read_table(text: str) -> Table:
    raw = tomllib.loads(text)
    faults = [Fault(**{key: tuple(v) if isinstance(v, list) else v for key, v in row.items()}) for row in raw["fault"]]
    return Table(matrices=tuple(raw["matrices"]), lists=raw["lists"], faults=tuple(faults))


@dataclass(frozen=True, kw_only=True)
class Cell:
    """What a cell of a run counts for."""

    id: str  # without its hash
    outcome: Outcome
    trainer: str
    version: str  # release or commit under test; empty: the environment of the harness


@dataclass(frozen=True, kw_only=True)
class Run:
    """What is kept of the report of a matrix."""

    id: str
    commit: str  # of the harness
    started: str  # ISO 8601
    cells: tuple[Cell, ...]  # without controls
    rejected: Mapping[str, int]  # version -> cells that a rule rejected


def kept_of(report: Report) -> Run:
    release = versions(report)
    cells = (
        Cell(
            id=cell.id.rpartition("-")[0],
            outcome=cell.outcome,
            trainer=str(cell.axes.get("trainer", "harness")),
            version=release.get(str(cell.axes.get("stack", "")), ""),
        )
        for cell in report.cells
        if cell.role == "cell"
    )
    rejected = Counter(release.get(str(cell.axes.get("stack", "")), "") for cell in report.rejected)
    return Run(
        id=report.run_id,
        commit=report.provenance["harness_commit"],
        started=report.provenance["started"],
        cells=tuple(cells),
        rejected=dict(rejected),
    )


def written(runs: Mapping[str, Run]) -> str:
    """The text of scoreboard_runs.json: a line per cell."""
    entries = {
        name: {
            "run": run.id,
            "commit": run.commit,
            "started": run.started,
            "rejected": run.rejected,
            "cells": [f"{cell.outcome} {cell.trainer} {cell.id} {cell.version}".rstrip() for cell in run.cells],
        }
        for name, run in sorted(runs.items())
    }
    return json.dumps(entries, indent=1, sort_keys=True) + "\n"


def read_kept(text: str) -> dict[str, Run]:
    """`written`, read back."""
    return {
        name: Run(
            id=entry["run"],
            commit=entry["commit"],
            started=entry["started"],
            cells=tuple(_cell(*line.split(" ", 3)) for line in entry["cells"]),
            rejected=entry["rejected"],
        )
        for name, entry in json.loads(text).items()
    }


def _cell(outcome: str, trainer: str, name: str, version: str = "") -> Cell:
    return Cell(id=name, outcome=Outcome(outcome), trainer=trainer, version=version)


def newest(folder: Path, kept: Mapping[str, Run]) -> dict[str, Run]:
    """The newest run of each matrix: kept, or of the whole matrix under `folder`."""
    reports = [read_report(path.read_text(encoding="utf-8")) for path in sorted(folder.glob("*/report.json"))]
    runs = [(report.matrix, kept_of(report)) for report in reports if report.selection is None]
    return dict(sorted([*kept.items(), *runs], key=lambda item: item[1].started))


def fitting(entry: str, runs: Mapping[str, Run]) -> list[Cell]:
    """The cells of an entry "matrix: pattern"."""
    matrix, _, pattern = entry.partition(": ")
    return [cell for cell in (runs[matrix].cells if matrix in runs else ()) if fnmatchcase(cell.id, pattern)]


def scored(fault: Fault, runs: Mapping[str, Run]) -> Score:
    """Whether each of its bad cells failed as known, and each of its good cells passed."""
    if fault.why_not:
        return Score(fault=fault, why_not=fault.why_not)
    wanted = [(entry, Outcome.XFAIL) for entry in fault.bad] + [(entry, Outcome.PASS) for entry in fault.good]
    for entry, outcome in wanted:
        cells = fitting(entry, runs)
        if not cells:
            return Score(fault=fault, why_not=f"NOT RUN: {entry}")
        if odd := [cell for cell in cells if cell.outcome is not outcome]:
            return Score(fault=fault, why_not=f"NOT SHOWN: {odd[0].id} is {odd[0].outcome}")
    return Score(fault=fault)


def unlisted(table: Table, runs: Mapping[str, Run]) -> list[str]:
    """Known failures of the runs that no fault lists."""
    listed = {id(cell) for fault in table.faults for entry in fault.bad for cell in fitting(entry, runs)}
    failed = [(name, cell) for name, run in runs.items() for cell in run.cells if cell.outcome is Outcome.XFAIL]
    return [f"{name}: {cell.id}" for name, cell in failed if id(cell) not in listed]


def versions(report: Report) -> dict[str, str]:
    """Stack of a run -> the release or commit under test, the most specific distribution first."""
    named = {}
    for stack, entry in report.provenance.get("stacks", {}).items():
        named[stack] = _version(entry, report.provenance["imports_of_stacks"].get(stack, []))
    return named


def _version(stack: Mapping[str, Any], imports: Sequence[Mapping[str, str]]) -> str:
    if stack["checkouts"]:
        checkout = stack["checkouts"][0]
        without = " without a fix" if checkout["reverted"] else ""
        return f"{checkout['project']} {checkout['commit'][:10]}{without}"
    packages = {package["name"]: package["version"] for package in stack["packages"]}
    order = ("verl", "skyrl", "skyrl-train", "megatron-bridge", "megatron-core")
    return next((f"{name} {packages[name]}" for name in order if name in packages), "")


def release_table(runs: Mapping[str, Run]) -> list[list[str]]:
    """Rows of matrix, release, cells that passed, known failures, rejected; checkouts are not releases."""
    rows = []
    for name, run in sorted(runs.items()):
        by_release: dict[str, Counter[str]] = {}
        for cell in run.cells:
            by_release.setdefault(cell.version, Counter())[cell.outcome.value] += 1
        for version, count in run.rejected.items():
            by_release.setdefault(version, Counter())["REJECTED"] += count
        for version, counted in sorted(by_release.items()):
            if any(version.startswith(f"{project} ") and "without" not in version for project in RELEASED):
                counts = [str(counted[outcome] or "") for outcome in ("PASS", "XFAIL", "REJECTED")]
                rows.append([name, version, *counts])
    return rows


RELEASED = ("verl", "skyrl", "skyrl-train", "megatron-bridge", "megatron-core")


def clean_cells(runs: Mapping[str, Run]) -> dict[str, tuple[int, list[str]]]:
    """Trainer -> how many cells without a known fault there are, and the ids of those that did not pass."""
    cells: dict[str, tuple[int, list[str]]] = {}
    for run in runs.values():
        for cell in run.cells:
            if cell.outcome is Outcome.XFAIL:
                continue
            count, failed = cells.get(cell.trainer, (0, []))
            cells[cell.trainer] = (count + 1, failed + [cell.id] * (cell.outcome in FAILED))
    return cells


def _rows(cells: Iterable[Sequence[str]]) -> list[str]:
    return ["| " + " | ".join(text.replace("|", "\\|").replace("\n", " ") for text in row) + " |" for row in cells]


def _markdown(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    return [*_rows([head]), "|" + "---|" * len(head), *_rows(rows), ""]


def page(table: Table, runs: Mapping[str, Run]) -> str:
    """The whole of docs/scoreboard.md."""
    scores = [scored(fault, runs) for fault in table.faults]
    missing = [f"`{name}`" for name in table.matrices if name not in runs]
    lines = [
        "# Scoreboard",
        "",
        "Real faults of upstream that the harness shows, counted in runs of its matrices by",
        "`benchmarks/scoreboard.py`; do not edit. A fault is shown when cells with it fail in the lane and with the",
        "message that their matrix demands, and the cells named beside them, without it, pass.",
        "",
        f"**{sum(not score.why_not for score in scores)} faults are shown.**",
        "",
        *([f"Not run, so what only these show does not count: {', '.join(missing)}.", ""] if missing else []),
    ]
    for name, heading in table.lists.items():
        lines += _section(heading, [score for score in scores if score.fault.list == name])
    lines += ["## Clean cells", "", "Cells without a known fault. One that does not pass is a false alarm.", ""]
    clean = sorted(clean_cells(runs).items())
    counts = [[name, str(count), str(len(failed))] for name, (count, failed) in clean]
    lines += _markdown(["trainer", "cells", "false alarms"], counts)
    lines += ["## Releases", "", "Cells of a release that pass, fail as known, and are rejected by a rule.", ""]
    lines += _markdown(["matrix", "release", "pass", "known failures", "rejected"], release_table(runs))
    lines += ["## Runs", ""]
    lines += _markdown(
        ["matrix", "run", "commit of the harness"], [[name, run.id, run.commit] for name, run in sorted(runs.items())]
    )
    return "\n".join(lines).rstrip() + "\n"


def _section(heading: str, scores: Sequence[Score]) -> list[str]:
    counted = [score for score in scores if not score.fault.gpu]
    shown = sum(not score.why_not for score in counted)
    without = f" {len(scores) - len(counted)} more need a GPU." if len(counted) < len(scores) else ""
    rows = [
        [score.fault.id, score.fault.title, score.fault.fix, score.why_not or score.matrices]
        for score in sorted(scores, key=lambda score: bool(score.why_not))
    ]
    head = ["", "what was wrong", "fix or report", "shown by, or why not"]
    return [f"## {heading}", "", f"**{shown} of {len(counted)}.**{without}", "", *_markdown(head, rows)]


def problems(table: Table, runs: Mapping[str, Run]) -> list[str]:
    """Why the page is not a good one."""
    scores = [scored(fault, runs) for fault in table.faults if not fault.why_not]
    found = [f"{score.fault.list} {score.fault.id}: {score.why_not}" for score in scores if score.why_not]
    found += [f"{name}: no run" for name in table.matrices if name not in runs]
    found += [f"a known failure that no fault lists: {cell}" for cell in unlisted(table, runs)]
    return found + [f"false alarm: {cell}" for _, failed in clean_cells(runs).values() for cell in failed]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=Path, default=ROOT / "reports", help="folder of run directories")
    parser.add_argument("--run", action="store_true", help="first run the matrices that have no run")
    asked = parser.parse_args()
    table = read_table((ROOT / "benchmarks" / "scoreboard.toml").read_text(encoding="utf-8"))
    kept = read_kept(KEPT.read_text(encoding="utf-8"))
    if asked.run:
        for name in (name for name in table.matrices if name not in newest(asked.runs, kept)):
            command = [sys.executable, "-m", "harness", "run", f"matrices/{name}.yaml", "--run-dir", str(asked.runs)]
            subprocess.run(command, cwd=ROOT, check=False)
    runs = {name: run for name, run in newest(asked.runs, kept).items() if name in table.matrices}
    KEPT.write_text(written(runs), encoding="utf-8")
    PAGE.write_text(page(table, runs), encoding="utf-8")
    found = problems(table, runs)
    print("\n".join(found) or f"{PAGE.name}: every fault is shown, no false alarm")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
