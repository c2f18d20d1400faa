"""Reads the records and results of a run directory. Nothing is unpickled, nothing is executed."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from harness.edge.run_dir import AttemptDir, RunDir
from harness.judge.evidence import CellFound
from harness.judge.failures import JobEnding, LogTail
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
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(Problem(message=f"is not JSON: {error}", file=str(run.plan))) from error
    if not isinstance(values, dict):
        raise InputError(Problem(message="is not a plan: a JSON object is needed", file=str(run.plan)))
    if values.get("schema_version") != SCHEMA_VERSION:
        found = str(values.get("schema_version"))
        raise InputError(
            Problem(message="unknown schema_version", file=str(run.plan), found=found, allowed=str(SCHEMA_VERSION))
        )
    try:
        plan = from_jsonable(RunPlan, values)
    except (TypeError, ValueError, KeyError, AttributeError) as error:
        raise InputError(Problem(message=f"is not a plan: {error}", file=str(run.plan))) from error
    if circular := plan.expansion.circular:
        raise InputError(Problem(message=f"cell {circular} is its own reference", file=str(run.plan)))
    return plan


def read_cell(run: RunDir, cell: str, jobs: Mapping[str, JobEnding]) -> CellFound:
    """Records, result and failed ranks' logs of a cell's newest attempt; `jobs`: how the jobs of cells ended."""
    number = newest(run, cell)
    attempt = run.attempt(cell, number)
    records, result = _read_attempt(cell, number, attempt)
    return CellFound(
        records=records,
        result=result,
        retried=number > 1,  # the cluster ended an earlier one
        logs=_log_tails(attempt, records, result),
        job=jobs.get(cell, JobEnding()),
    )


def read_result(run: RunDir, cell: str) -> CellResult | None:
    """Result of a cell's newest attempt; None while there is none that can be read."""
    number = newest(run, cell)
    return _read_attempt(cell, number, run.attempt(cell, number))[1]


def _log_tails(attempt: AttemptDir, records: Mapping[int, RankRecord], result: CellResult | None) -> dict[int, LogTail]:
    """Ends of the logs of the ranks that did not complete, of a cell that did not."""
    if result is not None and result.status == "completed":
        return {}
    logs = sorted((attempt.root / "log").glob("rank-*.log"))
    ranks = {int(path.stem.removeprefix("rank-")): path for path in logs}
    completed = {rank for rank, record in records.items() if record.ended == "completed"}
    return {rank: _tail(path) for rank, path in ranks.items() if rank not in completed}


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
