"""The last lines of a run's logs as text; screen.py escapes control characters."""

from __future__ import annotations

import io
import os
from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import BinaryIO

from harness.core.errors import InputError, Problem
from harness.core.run.run_dir import NotRegularError, RunDir, opened
from harness.infra.runs.evidence_files import newest, read_result

TAIL_LINES = 20
TAIL_BYTES = 16384
MOST_JOB_LOGS = 10  # job logs whose last lines are shown; the others are listed by name
_SUFFIXES = (".log", ".out", ".err")
PIECE_BYTES = 65536  # of a log that is shown whole


def job_logs_text(run: RunDir) -> str:
    """Logs of the run's jobs and agents: last lines of the newest that are not empty, then names of the others."""
    logs = [path for path in (run.root / "submissions").glob("*") if path.suffix in _SUFFIXES]
    written = sorted((path for path in logs if path.stat().st_size), key=lambda path: (path.stat().st_mtime, path.name))
    shown = written[-MOST_JOB_LOGS:]
    others = sorted(set(logs) - set(shown))
    named = [f"{path}  ({'not shown' if path.stat().st_size else 'empty'})" for path in others]
    parts = [_block(path, "", tail(path)) for path in shown] + ["\n".join(named)]
    return "\n\n".join(part for part in parts if part) or f"no job has written a log yet under {run.root}"


def logs_of(run: RunDir, cells: Sequence[str], rank: int | None) -> Iterator[str]:
    """Logs of cells, in pieces: their last lines, or the whole log of one rank. InputError when there is none."""
    for number, cell in enumerate(cells):
        yield "\n" if number else ""
        yield from [cell_logs_text(run, cell) + "\n"] if rank is None else rank_log(run, cell, rank)


def rank_log(run: RunDir, cell: str, rank: int) -> Iterator[str]:
    """The whole log of one rank of a cell's newest attempt, in pieces of bounded size, split at line ends if possible.

    InputError when there is none.
    """
    folder, logs = _rank_logs(run, cell)
    if rank not in logs:
        known = ", ".join(map(str, logs)) or "none: the cell has not started"
        raise InputError(Problem(message=f"no log of rank {rank} in {folder}", allowed=known))
    return chain([_head(logs[rank], "") + "\n"], _pieces(logs[rank]))


def _pieces(path: Path) -> Iterator[str]:
    with io.TextIOWrapper(_log(path), encoding="utf-8", errors="replace", newline="\n") as stream:
        while piece := stream.read(PIECE_BYTES):
            yield piece + stream.readline(PIECE_BYTES)


def _rank_logs(run: RunDir, cell: str) -> tuple[Path, dict[int, Path]]:
    folder = run.attempt(cell, newest(run, cell)).root / "log"
    return folder, {int(path.stem.removeprefix("rank-")): path for path in sorted(folder.glob("rank-*.log"))}


def cell_logs_text(run: RunDir, cell: str) -> str:
    """Last lines of the logs of a cell's newest attempt: of failed ranks, first failure first; else of all."""
    number = newest(run, cell)
    folder, logs = _rank_logs(run, cell)
    result = read_result(run, cell)
    endings = {one.rank: one.ended for one in result.ranks} if result else {}
    failed = [one for one in logs if endings.get(one) != "completed"]
    first = result.first_failure_rank if result else None
    failed.sort(key=lambda one: one != first)
    status = f"{result.status} {result.reason}".strip() if result else "has not ended"
    head = f"{cell}, attempt {number}: {status}"
    shown = failed or list(logs)
    parts = [_block(logs[one], endings.get(one, "no ending recorded"), tail(logs[one])) for one in shown]
    parts += [_block(path, "", text) for path in sorted(folder.glob("supervisor*.log")) if (text := tail(path))]
    parts += ["\n".join(f"{logs[one]}  (completed)" for one in logs if one not in shown)]
    return "\n\n".join([head, *(part for part in parts if part)])


def tail(path: Path, lines: int = TAIL_LINES) -> str:
    """The last lines of a file, however large it is."""
    with _log(path) as stream:
        size = stream.seek(0, os.SEEK_END)
        stream.seek(max(size - TAIL_BYTES, 0))
        text = stream.read().decode("utf-8", errors="replace")
    return "\n".join(text.splitlines()[-lines:])


def _log(path: Path) -> BinaryIO:
    try:
        return opened(path)
    except NotRegularError as error:
        raise InputError(Problem(message=f"cannot be read: {error.strerror}", file=str(path))) from error


def _block(path: Path, note: str, text: str) -> str:
    return "\n".join([_head(path, note), *text.splitlines()])


def _head(path: Path, note: str) -> str:
    return f"==> {path}{f' ({note})' if note else ''} <=="
