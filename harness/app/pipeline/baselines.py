"""The baselines of a run: read from the history once, then kept in the run directory, so that judging is repeatable.

baseline.json has a seal like that of plan.json: without it, removing an earlier run would go unnoticed.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

from harness.core.errors import HarnessError
from harness.core.run.run_dir import RunDir, text_of, write_json
from harness.core.run.run_plan import RunPlan
from harness.core.serialization import from_jsonable, loads, to_jsonable
from harness.infra import screen
from harness.judge.stats.baseline import Baseline, Sample

_DAMAGED = (OSError, TypeError, ValueError, KeyError, AttributeError, RecursionError)


def keep_baselines(run: RunDir, plan: RunPlan, file: Path) -> None:
    """Write baseline.json, unless it exists or the matrix does not ask for it.

    A history that cannot be read is reported on stderr.
    """
    path = run.report("baseline.json")
    if plan.history is None or path.exists():
        return
    cells = {cell.id: Baseline(runs=plan.history.runs) for cell in plan.expansion.cells}
    try:
        _add_samples(cells, plan, file)
    except HarnessError as error:
        screen.err(f"harness: times are not compared with earlier runs: {error}")
    write_baselines(run, cells)


def write_baselines(run: RunDir, cells: dict[str, Baseline]) -> None:
    write_json(run.report("baseline.json"), {"cells": cells, "seal": _seal(cells)}, indent=1)


def _seal(cells: dict[str, Baseline]) -> str:
    return hashlib.sha256(json.dumps(to_jsonable(cells), sort_keys=True).encode()).hexdigest()


def _add_samples(cells: dict[str, Baseline], plan: RunPlan, file: Path) -> None:
    from harness.infra.history.database import opened
    from harness.infra.history.queries import baseline

    if plan.history is None or not file.exists():
        return
    with opened(file, write=False) as history:
        for row in history.rows(baseline(plan.matrix_name, list(cells), plan.run_id, plan.history)):
            names = ("run_id", "started", "seconds", "version")
            sample = Sample(**{name: row[name] for name in names})
            cells[row["cell_id"]].samples.setdefault(row["hardware"], []).append(sample)


def read_baselines(run: RunDir) -> dict[str, Baseline]:
    """Cell id -> baseline; empty when the file is missing or damaged, which baseline_problem reports."""
    try:
        return _read(run)
    except _DAMAGED:
        return {}


def baseline_problem(run: RunDir, plan: RunPlan) -> str:
    """Why the run's baseline cannot be read, so that no cell is compared with earlier times; else empty."""
    path = run.report("baseline.json")
    if plan.history is not None and not path.exists():
        return f"{path} is missing, so times cannot be compared with earlier runs"
    try:
        _read(run)
    except _DAMAGED as error:
        hint = "remove it to read the times of earlier runs from the history again"
        return f"{path} cannot be read: {error}; {hint}"
    return ""


def _read(run: RunDir) -> dict[str, Baseline]:
    path = run.report("baseline.json")
    if not path.exists():
        return {}
    values = loads(text_of(path))
    cells = {cell: from_jsonable(Baseline, value, whole=True) for cell, value in values["cells"].items()}
    if values["seal"] != _seal(cells):
        raise ValueError("it was changed after it was written")
    return cells
