"""What the scoreboard counts: lists of known faults, the cells of runs, and what follows from both."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import tomllib

from harness.core.outcomes import Outcome
from harness.core.run.report import Report
from harness.core.stack import DEFAULT
from harness.reporting.render_json import read_report

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
    gpu: bool = False  # needs a GPU
    old: bool = False  # no commit with it runs: fixed before the oldest release that the harness can run


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
    rows: Mapping[str, Sequence[str]]  # what upstream ships -> the matrices that test releases of it
    heads: Mapping[str, str]  # commit of a checkout -> the release or branch that it is
    faults: tuple[Fault, ...]


def read_table(text: str) -> Table:
    raw = tomllib.loads(text)
    rows: list[dict[str, Any]] = [
        {key: tuple(v) if isinstance(v, list) else v for key, v in row.items()} for row in raw["fault"]
    ]
    faults = [Fault(**row) for row in rows]
    matrices = tuple(raw["matrices"])
    return Table(matrices=matrices, lists=raw["lists"], rows=raw["rows"], heads=raw["heads"], faults=tuple(faults))


@dataclass(frozen=True, kw_only=True)
class Cell:
    """What a cell of a run counts for."""

    id: str  # without its hash
    outcome: Outcome
    trainer: str
    version: str  # release or commit under test


@dataclass(frozen=True, kw_only=True)
class Run:
    """What is kept of the report of a matrix."""

    id: str
    commit: str  # of the harness
    started: str  # ISO 8601
    cells: tuple[Cell, ...]  # without controls
    rejected: Mapping[str, int]  # version -> cells that a rule rejected


def kept_of(report: Report) -> Run:
    cells = (
        Cell(
            id=cell.id.rpartition("-")[0],
            outcome=cell.outcome,
            trainer=str(cell.axes.get("trainer", "harness")),
            version=version_of(cell.axes, report),
        )
        for cell in report.cells
        if cell.role == "cell"
    )
    rejected = Counter(version_of(cell.axes, report) for cell in report.rejected)
    return Run(
        id=report.run_id,
        commit=report.provenance.harness_commit,
        started=report.provenance.started,
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


def shown(scores: Sequence[Score]) -> int:
    return sum(not score.why_not for score in scores)


ONE_CHANGE = re.compile(r"\b([0-9a-f]{8,}|(pull request|issue) [0-9]+)")


def distinct(scores: Sequence[Score]) -> int:
    """How many of the faults are shown, those that have the same commit, pull request or report as one."""
    faults = [score.fault for score in scores if not score.why_not]
    return len({fault.fix if ONE_CHANGE.search(fault.fix) else f"{fault.list} {fault.id}" for fault in faults})


def unlisted(table: Table, runs: Mapping[str, Run]) -> list[str]:
    """Known failures of the runs that no fault lists."""
    listed = {id(cell) for fault in table.faults for entry in fault.bad for cell in fitting(entry, runs)}
    failed = [(name, cell) for name, run in runs.items() for cell in run.cells if cell.outcome is Outcome.XFAIL]
    return [f"{name}: {cell.id}" for name, cell in failed if id(cell) not in listed]


def version_of(axes: Mapping[str, Any], report: Report) -> str:
    """The release or commit that a cell tests, of all that its stack holds."""
    stack = axes.get("stack", DEFAULT)
    software = report.provenance.software_of(stack)
    if software.checkouts:
        checkout = software.checkouts[0]
        without = " without a fix" if checkout.reverted else ""
        return f"{checkout.project} {checkout.commit[:10]}{without}"
    tested = ("megatron-core",) if stack == DEFAULT else _tested(axes)
    return next((f"{name} {software.versions[name]}" for name in tested if name in software.versions), "")


def _tested(axes: Mapping[str, Any]) -> tuple[str, ...]:
    """Distributions, the one whose code a cell tests first: of its trainer or data path, or of its model."""
    code = (axes.get("trainer"), axes.get("packing"))
    if "verl" in code:
        return ("verl",)
    if "skyrl" in code:
        return "skyrl", "skyrl-train"
    adapted = any(axes.get(name, "none") != "none" for name in ("model.peft", "model.vision"))
    if adapted or any(str(name).startswith("bridge") for name in code):
        return ("megatron-bridge",)
    return ("megatron-core",)


RELEASE = re.compile(r"(verl|skyrl|skyrl-train|megatron-bridge|megatron-core) [0-9]+\.[0-9.]+")


def release_table(table: Table, runs: Mapping[str, Run]) -> list[list[str]]:
    """Lines of row, release, cells that passed, known failures, rejected. Other commits of checkouts are left out."""
    lines = []
    for row, matrices in table.rows.items():
        counted: dict[str, Counter[str]] = {}
        for run in (runs[name] for name in matrices if name in runs):
            for cell in run.cells:
                counted.setdefault(cell.version, Counter())[cell.outcome.value] += 1
            for version, count in run.rejected.items():
                counted.setdefault(version, Counter())["REJECTED"] += count
        named = {table.heads.get(version, version): count for version, count in counted.items()}
        for version in sorted(name for name in named if RELEASE.fullmatch(name) or name in table.heads.values()):
            counts = [str(named[version][outcome] or "") for outcome in ("PASS", "XFAIL", "REJECTED")]
            lines.append([row, version, *counts])
    return lines


def clean_cells(runs: Mapping[str, Run]) -> dict[str, tuple[int, list[str]]]:
    """Trainer -> how many cells without a known fault were run, and the ids of those that did not pass."""
    cells: dict[str, tuple[int, list[str]]] = {}
    for run in runs.values():
        for cell in run.cells:
            if cell.outcome is not Outcome.PASS and cell.outcome not in FAILED:
                continue
            count, failed = cells.get(cell.trainer, (0, []))
            cells[cell.trainer] = (count + 1, failed + [cell.id] * (cell.outcome in FAILED))
    return cells
