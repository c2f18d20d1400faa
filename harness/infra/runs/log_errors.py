"""The errors of a run: of each failed cell the traceback of the rank that failed first, from its own log."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from harness.core.run.cell_result import CellResult
from harness.core.run.run_dir import RunDir
from harness.infra.runs.evidence_files import read_result
from harness.infra.runs.log_noise import without_noise
from harness.infra.runs.logs import rank_logs, tail

_HEAD = "Traceback (most recent call last):"
_LINES = 400  # of the end of a log, in which a traceback is searched
_STACKS = "Fatal Python error:", "Timeout (", "Thread 0x"  # of faulthandler


def errors_text(run: RunDir, cells: Sequence[str]) -> Iterator[str]:
    """One block for each cell that did not complete; a sentence when there is none."""
    found = False
    for cell in cells:
        result = read_result(run, cell)
        if result is not None and result.status in ("failed", "error"):
            found = True
            yield _cell(run, cell, result) + "\n"
    if not found:
        yield "every cell that has ended ran to its end; `harness report` shows what its checks found\n"


def _cell(run: RunDir, cell: str, result: CellResult) -> str:
    _, logs = rank_logs(run, cell)
    ranks = [rank.rank for rank in result.ranks if rank.ended != "completed" and rank.rank in logs]
    first = result.first_failure_rank
    ranks.sort(key=lambda rank: rank != first)
    head = f"{cell}: {result.status}{f', {result.reason}' if result.reason else ''}"
    for rank in ranks or ([first] if first in logs else []):
        if rank is not None and (text := traceback_in(logs[rank])):
            return f"{head}\n==> {logs[rank]} (rank {rank}) <==\n{text}"
    return f"{head}\n  no log holds a traceback; all logs: harness logs {run.root} {cell}"


def traceback_in(path: Path) -> str:
    """The last traceback of a log, with those it was raised from; else the stacks of a rank that was stopped."""
    try:
        text = without_noise(tail(path, _LINES))
    except OSError as error:
        return f"cannot be read: {error.strerror}"
    lines = text.splitlines()
    starts = [number for number, line in enumerate(lines) if line.strip() == _HEAD]
    if starts:
        return "\n".join(_block(lines, starts))
    stacks = [number for number, line in enumerate(lines) if line.startswith(_STACKS)]
    return "\n".join(lines[stacks[0] :]) if stacks else ""


def _block(lines: Sequence[str], starts: Sequence[int]) -> Sequence[str]:
    """The last traceback, with the ones that it was raised from, and all lines after it: a message may have many."""
    first = starts[-1]
    for start in reversed(starts[:-1]):
        between = lines[start:first]
        if not any(
            "exception was the direct cause" in line or "another exception occurred" in line for line in between
        ):
            break
        first = start
    return lines[first:]
