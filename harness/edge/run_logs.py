"""Where the logs of a run lie, and their ends as text. What a rank printed is shown as it is, but for control codes."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from pathlib import Path

from harness.edge.evidence_files import newest, read_result
from harness.edge.run_dir import RunDir
from harness.words.errors import InputError, Problem

TAIL_LINES = 20
TAIL_BYTES = 16384
MOST_JOB_LOGS = 10  # whose ends are shown; the others are named
_SUFFIXES = (".log", ".out", ".err")
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")  # all but tab and line feed: logs must not steer a terminal


def job_logs_text(run: RunDir) -> str:
    """Logs of the run's jobs and agents: the ends of the newest that hold anything, then the names of the others."""
    logs = [path for path in (run.root / "submissions").glob("*") if path.suffix in _SUFFIXES]
    written = sorted((path for path in logs if path.stat().st_size), key=lambda path: (path.stat().st_mtime, path.name))
    shown = written[-MOST_JOB_LOGS:]
    others = sorted(set(logs) - set(shown))
    named = [f"{path}  ({'not shown' if path.stat().st_size else 'empty'})" for path in others]
    parts = [_block(path, "", tail(path)) for path in shown] + ["\n".join(named)]
    return "\n\n".join(part for part in parts if part) or f"no job has written a log yet under {run.root}"


def cell_logs_text(run: RunDir, cell: str, rank: int | None = None) -> str:
    """Logs of a cell's newest attempt: ends of the failed ranks' logs, the first failure first; of all if none failed.

    `rank` picks the log of one rank, whole. InputError when there is none.
    """
    number = newest(run, cell)
    folder = run.attempt(cell, number).root / "log"
    logs = {int(path.stem.removeprefix("rank-")): path for path in sorted(folder.glob("rank-*.log"))}
    if rank is not None:
        if rank not in logs:
            known = ", ".join(map(str, logs)) or "none: the cell has not started"
            raise InputError(Problem(message=f"no log of rank {rank} in {folder}", allowed=known))
        return _block(logs[rank], "", logs[rank].read_text(encoding="utf-8", errors="replace"))
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
    with path.open("rb") as stream:
        size = stream.seek(0, os.SEEK_END)
        stream.seek(max(size - TAIL_BYTES, 0))
        text = stream.read().decode("utf-8", errors="replace")
    return "\n".join(text.splitlines()[-lines:])


def _block(path: Path, note: str, text: str) -> str:
    return "\n".join(_plain([f"==> {path}{f' ({note})' if note else ''} <==", *text.splitlines()]))


def _plain(lines: Iterable[str]) -> Iterable[str]:
    return (_CONTROL.sub("?", line) for line in lines)
