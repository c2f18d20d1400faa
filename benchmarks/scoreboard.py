"""Which real faults of upstream the harness shows, and what its verdicts on clean cells are: writes docs/scoreboard.md.

    .venv/bin/python benchmarks/scoreboard.py [--runs reports] [--run]

Every number is counted in the newest report of a matrix under --runs. scoreboard.toml names the matrices, the known
faults and the cells that show each: `bad` cells must fail where their matrix says (XFAIL), `good` cells, without the
fault, must pass. --run first runs the matrices that have no report; most need checkouts where they expect them. Exit
code 1 when a fault is not shown, a known failure is in no list, a matrix has no report, or a clean cell failed.
"""

from __future__ import annotations

import argparse
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
from harness.judge.report.model import Report, ReportCell
from harness.judge.report.render_json import read_report

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "scoreboard.md"
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


def newest(folder: Path) -> dict[str, Report]:
    """The newest report of each matrix, of runs of the whole matrix."""
    reports = [read_report(path.read_text(encoding="utf-8")) for path in sorted(folder.glob("*/report.json"))]
    whole = [report for report in reports if report.selection is None]
    return {report.matrix: report for report in sorted(whole, key=lambda report: report.provenance["started"])}


def plain_id(cell: ReportCell) -> str:
    return cell.id.rpartition("-")[0]


def fitting(entry: str, reports: Mapping[str, Report]) -> list[ReportCell]:
    """The cells of an entry "matrix: pattern"."""
    matrix, _, pattern = entry.partition(": ")
    cells = reports[matrix].cells if matrix in reports else []
    return [cell for cell in cells if cell.role == "cell" and fnmatchcase(plain_id(cell), pattern)]


def scored(fault: Fault, reports: Mapping[str, Report]) -> Score:
    """Whether each of its bad cells failed as known, and each of its good cells passed."""
    if fault.why_not:
        return Score(fault=fault, why_not=fault.why_not)
    wanted = [(entry, Outcome.XFAIL) for entry in fault.bad] + [(entry, Outcome.PASS) for entry in fault.good]
    for entry, outcome in wanted:
        cells = fitting(entry, reports)
        if not cells:
            return Score(fault=fault, why_not=f"NOT RUN: {entry}")
        if odd := [cell for cell in cells if cell.outcome is not outcome]:
            return Score(fault=fault, why_not=f"NOT SHOWN: {odd[0].id} is {odd[0].outcome}")
    return Score(fault=fault)


def unlisted(table: Table, reports: Mapping[str, Report]) -> list[str]:
    """Known failures of the reports that no fault lists."""
    listed = {id(cell) for fault in table.faults for entry in fault.bad for cell in fitting(entry, reports)}
    failed = [
        (name, cell) for name, report in reports.items() for cell in report.cells if cell.outcome is Outcome.XFAIL
    ]
    return [f"{name}: {plain_id(cell)}" for name, cell in failed if id(cell) not in listed]


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


def release_table(reports: Mapping[str, Report]) -> list[list[str]]:
    """Rows of matrix, release, cells that passed, known failures, rejected; checkouts are not releases."""
    rows = []
    for name, report in sorted(reports.items()):
        by_release: dict[str, Counter[str]] = {}
        release = versions(report)
        for cell in report.cells:
            if cell.role == "cell" and (version := release.get(str(cell.axes.get("stack", "")), "")):
                by_release.setdefault(version, Counter())[cell.outcome.value] += 1
        for rejected in report.rejected:
            if version := release.get(str(rejected.axes.get("stack", "")), ""):
                by_release.setdefault(version, Counter())["REJECTED"] += 1
        for version, count in sorted(by_release.items()):
            if any(version.startswith(f"{project} ") and "without" not in version for project in RELEASED):
                counts = [str(count[outcome] or "") for outcome in ("PASS", "XFAIL", "REJECTED")]
                rows.append([name, version, *counts])
    return rows


RELEASED = ("verl", "skyrl", "skyrl-train", "megatron-bridge", "megatron-core")


def clean_cells(reports: Mapping[str, Report]) -> dict[str, tuple[int, list[str]]]:
    """Trainer -> how many cells without a known fault there are, and the ids of those that did not pass."""
    cells: dict[str, tuple[int, list[str]]] = {}
    for report in reports.values():
        for cell in report.cells:
            if cell.role != "cell" or cell.outcome is Outcome.XFAIL:
                continue
            count, failed = cells.get(trainer := str(cell.axes.get("trainer", "harness")), (0, []))
            cells[trainer] = (count + 1, failed + [cell.id] * (cell.outcome in FAILED))
    return cells


def _rows(cells: Iterable[Sequence[str]]) -> list[str]:
    return ["| " + " | ".join(text.replace("|", "\\|").replace("\n", " ") for text in row) + " |" for row in cells]


def _markdown(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    return [*_rows([head]), "|" + "---|" * len(head), *_rows(rows), ""]


def page(table: Table, reports: Mapping[str, Report]) -> str:
    """The whole of docs/scoreboard.md."""
    scores = [scored(fault, reports) for fault in table.faults]
    lines = [
        "# Scoreboard",
        "",
        "Real faults of upstream that the harness shows, counted in the reports of its matrices by",
        "`benchmarks/scoreboard.py`; do not edit. A fault is shown when cells with it fail in the lane and with the",
        "message that their matrix demands, and the cells named beside them, without it, pass.",
        "",
        f"**{sum(not score.why_not for score in scores)} faults are shown.**",
        "",
    ]
    for name, heading in table.lists.items():
        lines += _section(heading, [score for score in scores if score.fault.list == name])
    lines += ["## Clean cells", "", "Cells without a known fault. One that does not pass is a false alarm.", ""]
    clean = sorted(clean_cells(reports).items())
    counts = [[name, str(count), str(len(failed))] for name, (count, failed) in clean]
    lines += _markdown(["trainer", "cells", "false alarms"], counts)
    lines += ["## Releases", "", "Cells of a release that pass, fail as known, and are rejected by a rule.", ""]
    lines += _markdown(["matrix", "release", "pass", "known failures", "rejected"], release_table(reports))
    lines += ["## Runs", ""]
    runs = [[name, report.run_id, report.provenance["harness_commit"]] for name, report in sorted(reports.items())]
    lines += _markdown(["matrix", "run", "commit of the harness"], runs)
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


def problems(table: Table, reports: Mapping[str, Report]) -> list[str]:
    """Why the page is not a good one."""
    scores = [scored(fault, reports) for fault in table.faults if not fault.why_not]
    found = [f"{score.fault.list} {score.fault.id}: {score.why_not}" for score in scores if score.why_not]
    found += [f"{name}: no report" for name in table.matrices if name not in reports]
    found += [f"a known failure that no fault lists: {cell}" for cell in unlisted(table, reports)]
    return found + [f"false alarm: {cell}" for _, failed in clean_cells(reports).values() for cell in failed]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=Path, default=ROOT / "reports", help="folder of run directories")
    parser.add_argument("--run", action="store_true", help="first run the matrices that have no report")
    asked = parser.parse_args()
    table = read_table((ROOT / "benchmarks" / "scoreboard.toml").read_text(encoding="utf-8"))
    if asked.run:
        for name in (name for name in table.matrices if name not in newest(asked.runs)):
            command = [sys.executable, "-m", "harness", "run", f"matrices/{name}.yaml", "--run-dir", str(asked.runs)]
            subprocess.run(command, cwd=ROOT, check=False)
    reports = {name: report for name, report in newest(asked.runs).items() if name in table.matrices}
    PAGE.write_text(page(table, reports), encoding="utf-8")
    found = problems(table, reports)
    print("\n".join(found) or f"{PAGE.name}: every fault is shown, no false alarm")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
