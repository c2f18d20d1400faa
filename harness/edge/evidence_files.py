"""Reads the records and results of a run directory. Nothing is unpickled, nothing is executed."""

from __future__ import annotations

import json
from pathlib import Path

from harness.edge.run_dir import AttemptDir, RunDir
from harness.words.errors import InputError, Problem
from harness.words.jsonable import from_jsonable, loads
from harness.words.records import SCHEMA_VERSION, CellResult, RankRecord
from harness.words.run_plan import RunPlan

Found = tuple[dict[int, RankRecord], CellResult | None]


def read_plan(run: RunDir) -> RunPlan:
    """The run's plan.json; InputError when it is missing or written by another version."""
    if not run.plan.exists():
        raise InputError(Problem(message="is not a run directory: no plan.json", file=str(run.root)))
    values = _loads(run.plan)
    if values.get("schema_version") != SCHEMA_VERSION:
        found = str(values.get("schema_version"))
        raise InputError(
            Problem(message="unknown schema_version", file=str(run.plan), found=found, allowed=str(SCHEMA_VERSION))
        )
    try:
        return from_jsonable(RunPlan, values)
    except TypeError as error:
        raise InputError(Problem(message=str(error), file=str(run.plan))) from error


def read_evidence(run: RunDir, plan: RunPlan) -> dict[str, Found]:
    """Records by rank and the result of every planned cell's newest attempt."""
    return {cell.id: _read_attempt(run.attempt(cell.id, _newest(run, cell.id))) for cell in plan.expansion.cells}


def _newest(run: RunDir, cell: str) -> int:
    number = 1
    while run.attempt(cell, number + 1).root.exists():
        number += 1
    return number


def _read_attempt(attempt: AttemptDir) -> Found:
    records = {}
    for path in sorted((attempt.root / "ranks").glob("rank-*.json")):
        record = _read(RankRecord, path)
        records[record.rank] = record
    result = _read(CellResult, attempt.result) if attempt.result.exists() else None
    return records, result


def _read(kind: type, path: Path):  # type: ignore[no-untyped-def]
    try:
        return from_jsonable(kind, _loads(path))
    except (TypeError, ValueError) as error:
        raise InputError(
            Problem(message=f"is not a {kind.__name__} of this version: {error}", file=str(path))
        ) from error


def _loads(path: Path):  # type: ignore[no-untyped-def]
    try:
        return loads(path.read_text(encoding="utf-8"))
    except json.JSONDecodeError as error:
        raise InputError(Problem(message=f"is not JSON: {error.msg}", file=str(path), line=error.lineno)) from error
