"""Reads the records and results of a run directory. Nothing is unpickled, nothing is executed."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from harness.core.cell.config import CellConfig
from harness.core.errors import InfrastructureError, InputError, Problem
from harness.core.run.record_file import RecordReader
from harness.core.run.records import CellResult, OracleRecord, RankRecord, digest_of_result
from harness.core.run.run_dir import AttemptDir, RunDir, digest_of, opened, record_name, text_of
from harness.core.run.run_plan import PLAN_VERSION, RunPlan, seal_of
from harness.core.run.tensor_records import OperationsSeen
from harness.core.secrets import without_secrets
from harness.core.serialization import from_jsonable, loads
from harness.judge.evidence.in_turn import CellFound
from harness.judge.failures.classification import JobEnding, LogTail

LOG_TAIL_BYTES = 4096
_OTHER_VERSION = "another version of the harness"
_JUDGE_THERE = "judge it with the version that ran it"


def read_plan(run: RunDir) -> RunPlan:
    """Return the run's plan.json; InputError when it is missing or written by another version."""
    if not run.plan.exists():
        raise InputError(Problem(message="is not a run directory: no plan.json", file=str(run.root)))
    try:
        values = loads(text_of(run.plan))
    except (OSError, ValueError, RecursionError) as error:
        what = "cannot be read" if isinstance(error, OSError) else "is not JSON"
        raise InputError(Problem(message=f"{what}: {error}", file=str(run.plan))) from error
    if not isinstance(values, dict):
        raise InputError(Problem(message="is not a plan: not a JSON object", file=str(run.plan)))
    if values.get("schema_version") != PLAN_VERSION:
        version = str(values.get("schema_version"))
        message = f"unknown schema_version; it was written by {_writer(values)}; {_JUDGE_THERE}"
        raise InputError(Problem(message=message, file=str(run.plan), found=version, allowed=str(PLAN_VERSION)))
    try:
        plan = from_jsonable(RunPlan, values, whole=True)
    except (TypeError, ValueError, KeyError, AttributeError) as error:
        raise InputError(
            Problem(message=f"is not a plan: {_why(error, _writer(values))}", file=str(run.plan))
        ) from error
    if circular := plan.expansion.circular:
        raise InputError(Problem(message=f"cell {circular} is its own control", file=str(run.plan)))
    return plan


def run_problems(run: RunDir, plan: RunPlan) -> list[str]:
    """Return problems of the run as a whole, which make it undecided whatever the outcomes of its cells.

    A plan that was changed after the start could hide cells; so could folders of cells that the plan does not name.
    """
    problems = []
    try:
        stated = loads(text_of(run.plan))["seal"]
    except (KeyError, TypeError, ValueError, RecursionError, OSError) as error:
        problems.append(f"plan.json cannot be read, or has no checksum: {type(error).__name__}: {error}")
    else:
        if stated != (seal := seal_of(without_secrets(plan))):
            problems.append(
                f"plan.json was changed after the run began: its checksum is {stated!r}, but its content gives {seal!r}"
            )
    strange = sorted({path.name for path in run.cells()} - {cell.id for cell in plan.expansion.cells})
    if strange:
        problems.append(f"cells/ holds {len(strange)} folders of cells that plan.json does not name, e.g. {strange[0]}")
    return problems


def read_cell(run: RunDir, cell: str, jobs: Mapping[str, JobEnding]) -> CellFound:
    """Return all files of a cell's attempts, and the ends of the logs of ranks that failed.

    `jobs`: how the jobs of cells' newest attempts ended. A file that cannot be read is named in `damaged`: it makes
    only this cell an error.
    """
    number, damaged = _attempts(run, cell)
    newest_attempt = _attempt(run, cell, number, damaged)
    return replace(
        newest_attempt,
        folder=run.attempt(cell, number).root.relative_to(run.root).as_posix(),
        job=jobs.get(cell, JobEnding()),
        earlier=tuple(_attempt(run, cell, before, []) for before in range(1, number)),
        retried=any(not run.attempt(cell, before).interrupted.exists() for before in range(1, number)),
    )


def _attempt(run: RunDir, cell: str, number: int, damaged: list[str]) -> CellFound:
    return _attempt_of(run.attempt(cell, number), number, damaged)


def _attempt_of(attempt: AttemptDir, number: int, damaged: list[str]) -> CellFound:
    records = read_records(attempt, damaged)
    result = _read(attempt.result, CellResult, damaged)
    oracle = _read(attempt.oracle, OracleRecord, damaged)
    damaged += [] if damaged or result is None else _broken_seal(attempt, result, records)
    resumed = _attempt_of(attempt.resumed, number, []) if attempt.resumed.root.is_dir() else None
    return CellFound(
        resumed=resumed,
        records=records,
        result=result,
        oracle=oracle,
        logs=_log_tails(attempt, records, result),
        attempt=number,
        config=_read(attempt.config, CellConfig, damaged),
        damaged=damaged,
    )


def _broken_seal(attempt: AttemptDir, result: CellResult, records: Mapping[int, RankRecord]) -> list[str]:
    """Return the first file of evidence that is not as it was when the attempt ended, by the digests in its result."""
    if result.seal != (seal := digest_of_result(result)):
        return [f"result.json was changed after it was written: its seal is {result.seal!r}, its content gives {seal}"]
    sealed = {attempt.record(ending.rank): ending.digest for ending in result.ranks} | {attempt.oracle: result.oracle}
    for path in (*map(attempt.record, records), attempt.oracle):
        sealed.setdefault(path, "")
    for path, digest in sealed.items():
        if not path.exists():
            if digest:
                return [f"{path.name}, which result.json has the digest of, is missing"]
        elif digest and digest != (actual := digest_of(path)):
            return [
                f"{path.name} was changed after the attempt: its SHA-256 is {actual}, in result.json it is {digest}"
            ]
        elif not digest and result.status == "completed":
            return [f"{path.name} is not of the attempt: result.json, which says completed, has no digest of it"]
    return []


def read_result(run: RunDir, cell: str) -> CellResult | None:
    """Return the result of a cell's newest attempt; None while there is none.

    An unreadable one is an error with the reason. If the cell resumed, and did not complete then, that of the part
    after the checkpoint.
    """
    number = newest(run, cell)
    damaged: list[str] = []
    result = _read(run.attempt(cell, number).result, CellResult, damaged)
    later = _read(run.attempt(cell, number).resumed.result, CellResult, damaged)
    if result is not None and later is not None and later.status != "completed":
        result = later
    return CellResult(cell=cell, attempt=number, status="error", reason=damaged[0]) if damaged else result


def _log_tails(attempt: AttemptDir, records: Mapping[int, RankRecord], result: CellResult | None) -> dict[int, LogTail]:
    """Return last lines of the logs of the ranks that did not complete, if the cell did not complete."""
    if result is not None and result.status == "completed":
        return {}
    logs = sorted((attempt.root / "log").glob("rank-*.log"))
    numbers = [(path.stem.removeprefix("rank-"), path) for path in logs if path.is_file()]
    ranks = {int(number): path for number, path in numbers if number.isascii() and number.isdigit()}
    completed = {rank for rank, record in records.items() if record.ended == "completed"}
    return {rank: _tail(path) for rank, path in ranks.items() if rank not in completed}


def _tail(path: Path) -> LogTail:
    try:
        stream = opened(path)
    except OSError as error:
        return LogTail(text=f"the log cannot be read: {error.strerror}")
    with stream:
        size = stream.seek(0, os.SEEK_END)
        stream.seek(max(size - LOG_TAIL_BYTES, 0))
        text = stream.read().decode("utf-8", errors="replace")
        return LogTail(text=text, written=os.fstat(stream.fileno()).st_mtime)


def newest(run: RunDir, cell: str) -> int:
    """Return the number of a cell's newest attempt, from 1; 1 when there is none yet."""
    number = 1
    while run.attempt(cell, number + 1).root.exists():
        number += 1
    return number


def _attempts(run: RunDir, cell: str) -> tuple[int, list[str]]:
    """Return the newest attempt, and problems of the attempt folders, which are numbered from 1 without a gap."""
    number = newest(run, cell)
    folder = run.cell(cell)
    names = {path.name for path in folder.glob("attempt-*")} if folder.is_dir() else set()
    expected = {f"attempt-{attempt}" for attempt in range(1, number + 1)}
    stray, absent = sorted(names - expected), sorted(expected - names) if names else []
    gap = absent[0] if absent else f"attempt-{number + 1}"
    return number, [f"{(stray or sorted(names))[-1]} exists, but {gap} does not"] if stray or absent else []


def read_records(attempt: AttemptDir, damaged: list[str]) -> dict[int, RankRecord]:
    """Return records by rank; what is wrong with a file is added to `damaged`.

    A record under the name of another rank is damage: it would replace that rank's record.
    """
    records: dict[int, RankRecord] = {}
    reader = RecordReader()
    for path in sorted((attempt.root / "ranks").glob("rank-*.json")):
        record = _parsed(path, reader.read, damaged)
        if record is None:
            continue
        if path.name != record_name(record.rank):
            damaged.append(f"{path.name} is the record of rank {record.rank}")
        else:
            records[record.rank] = record
    return records


def read_operations(attempt: AttemptDir) -> tuple[dict[int, OperationsSeen], OperationsSeen | None]:
    """Return operations by rank, of a run that recorded them, and those of the oracle if it has any.

    InfrastructureError for a file that cannot be read.
    """
    damaged: list[str] = []
    files = sorted(attempt.operations(0).parent.glob("rank-*.json"))
    by_ranks = [seen for seen in (_read(path, OperationsSeen, damaged) for path in files) if seen is not None]
    path = attempt.oracle_operations
    oracle = _read(path, OperationsSeen, damaged) if path.exists() else None
    if damaged:
        raise InfrastructureError(f"{path.parent}: {damaged[0]}")
    return {seen.rank: seen for seen in by_ranks}, oracle


T = TypeVar("T", RankRecord, OracleRecord, CellResult, CellConfig, OperationsSeen)


def _read(path: Path, kind: type[T], damaged: list[str]) -> T | None:
    return _parsed(path, lambda text: from_jsonable(kind, loads(text), whole=True), damaged)


def _parsed(path: Path, parse: Callable[[str], T], damaged: list[str]) -> T | None:
    """Read a file of evidence; None when it is missing, or when it cannot be read, which is added to `damaged`."""
    try:
        return parse(text_of(path))
    except FileNotFoundError:
        return None
    except (TypeError, ValueError, OverflowError, RecursionError, OSError) as error:
        damaged.append(f"{path.name} cannot be read: {_why(error)}")
        return None


def _writer(plan: Mapping[str, object]) -> str:
    """Return which version of the harness wrote a plan that this one cannot read."""
    provenance = plan.get("provenance")
    known = provenance if isinstance(provenance, dict) else {}
    named = [str(known.get(name, "unknown")) for name in ("harness", "harness_commit")]
    parts = [f"{what}{value}" for what, value in zip(("", "commit "), named) if value != "unknown"]
    return ", ".join([_OTHER_VERSION, *parts])


def _why(error: Exception, writer: str = _OTHER_VERSION) -> str:
    """Return what is wrong with a file. Its writer writes every field, so other fields mean another version."""
    text = str(error)
    fields = isinstance(error, TypeError) and (text.endswith(" is missing") or ": unknown field " in text)
    return f"{text}; unless the file was changed, it was written by {writer}; {_JUDGE_THERE}" if fields else text
