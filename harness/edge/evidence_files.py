"""Reads the records and results of a run directory. Nothing is unpickled, nothing is executed."""

from __future__ import annotations

import os
from pathlib import Path

from harness.edge.run_dir import AttemptDir, RunDir
from harness.judge.failures import LogTail
from harness.words.errors import InputError, Problem
from harness.words.jsonable import from_jsonable, loads
from harness.words.records import SCHEMA_VERSION, CellResult, RankRecord
from harness.words.run_plan import RunPlan

LOG_TAIL_BYTES = 4096

Found = tuple[dict[int, RankRecord], CellResult | None]


def read_plan(run: RunDir) -> RunPlan:
    """The run's plan.json; InputError when it is missing or written by another version."""
    if not run.plan.exists():
        raise InputError(Problem(message="is not a run directory: no plan.json", file=str(run.root)))
    try:
        values = loads(run.plan.read_text(encoding="utf-8"))
    except ValueError as error:
        raise InputError(Problem(message=f"is not JSON: {error}", file=str(run.plan))) from error
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
    found = {}
    for cell in plan.expansion.cells:
        number = newest(run, cell.id)
        found[cell.id] = _read_attempt(cell.id, number, run.attempt(cell.id, number))
    return found


def tried_again(run: RunDir, plan: RunPlan) -> frozenset[str]:
    """Cells that have more than one attempt: the cluster ended an earlier one."""
    return frozenset(cell.id for cell in plan.expansion.cells if newest(run, cell.id) > 1)


def read_result(run: RunDir, cell: str) -> CellResult | None:
    """Result of a cell's newest attempt; None while there is none that can be read."""
    number = newest(run, cell)
    return _read_attempt(cell, number, run.attempt(cell, number))[1]


def read_log_tails(run: RunDir, found: dict[str, Found]) -> dict[str, dict[int, LogTail]]:
    """Ends of the logs of the ranks that did not complete, by cell and rank, for the cells that did not."""
    tails = {}
    for cell, (records, result) in found.items():
        completed = {rank for rank, record in records.items() if record.ended == "completed"}
        logs = sorted((run.attempt(cell, newest(run, cell)).root / "log").glob("rank-*.log"))
        if result is None or result.status != "completed":
            ranks = {int(path.stem.removeprefix("rank-")): path for path in logs}
            tails[cell] = {rank: _tail(path) for rank, path in ranks.items() if rank not in completed}
    return tails


def _tail(path: Path) -> LogTail:
    with path.open("rb") as stream:
        size = stream.seek(0, os.SEEK_END)
        stream.seek(max(size - LOG_TAIL_BYTES, 0))
        text = stream.read().decode("utf-8", errors="replace")
        return LogTail(text=text, written=os.fstat(stream.fileno()).st_mtime)


def newest(run: RunDir, cell: str) -> int:
    """Number of a cell's newest attempt, from 1; 1 when there is none yet."""
    number = 1
    while run.attempt(cell, number + 1).root.exists():
        number += 1
    return number


def _read_attempt(cell: str, number: int, attempt: AttemptDir) -> Found:
    """A file that cannot be read makes this attempt an error that names it; other cells are still judged."""
    damaged = []
    records: dict[int, RankRecord] = {}
    for path in sorted((attempt.root / "ranks").glob("rank-*.json")):
        try:
            record = from_jsonable(RankRecord, loads(path.read_text(encoding="utf-8")))
            records[record.rank] = record
        except (TypeError, ValueError) as error:
            damaged.append(f"{path.name} cannot be read: {error}")
    result = None
    if attempt.result.exists():
        try:
            result = from_jsonable(CellResult, loads(attempt.result.read_text(encoding="utf-8")))
        except (TypeError, ValueError) as error:
            damaged.append(f"{attempt.result.name} cannot be read: {error}")
    if damaged:
        result = CellResult(cell=cell, attempt=number, status="error", reason="; ".join(damaged))
    return records, result
