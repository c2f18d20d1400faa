"""A run's logs as text: their last lines, the tracebacks of failed ranks, new lines as they grow; how its jobs ended.

Lines that other packages write into every log are left out. screen.py escapes control characters.
"""

from __future__ import annotations

import io
import os
import re
import stat
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import TextIO

from harness.core.errors import HarnessError, InputError, Problem
from harness.core.run.events import CellFinished, CellStarted, Event, JobEnded, Journal, Loaded, read_events
from harness.core.run.records import CellResult
from harness.core.run.run_dir import RunDir, opened
from harness.core.run.run_plan import newest_work_order
from harness.core.secrets import ends_in_key, redacted
from harness.infra.screen import environment_secrets
from harness.judge.failures.classification import JobEnding
from harness.runs.evidence_files import newest, read_result
from harness.runs.lock import launcher_of

TAIL_LINES = 20
TAIL_BYTES = 16384
MAX_JOB_LOGS = 10  # job logs whose last lines are shown; the others are listed by name
_SUFFIXES = (".log", ".out", ".err")
PIECE_CHARACTERS = 65536  # of a log that is shown whole; a longer line is cut
# Characters read past a cut and not shown: a secret that the cut divides is recognised only as a whole.
MARGIN = 8192
_RANK_LOG = re.compile(r"rank-([0-9]+)\.log")
# Pattern of a whole line -> what writes it.
NOISE = {
    r"nanobind: leaked \d+ .*": "nanobind, when a process ends: nb_internals.cpp, internals_cleanup",
    r" - leaked (function|type|instance|keep_alive|.*record).*": "the same",
    r" - \.\.\. skipped remainder": "the same",
    r"nanobind: this is likely caused by a reference counting issue in the binding code\.": "the same",
    r"See https://nanobind\.readthedocs\.io/.*": "the same",
    r".*UserWarning: (Transformer Engine and Apex are|Apex is|absl\.logging is) not installed.*": "megatron.core",
    r"  warnings\.warn\(.*": "the second line of such a warning",
    r"\[W.* Warning: Environment variable TORCH_NCCL_TRACE_BUFFER_SIZE is deprecated.*": "torch: c10d/Utils.hpp",
}
_NOISE = re.compile("|".join(f"(?:{pattern})" for pattern in NOISE))
_TRACEBACK_HEAD = "Traceback (most recent call last):"
_SEARCHED_LINES = 400  # of the end of a log, in which a traceback is searched
_STACK_HEADS = "Fatal Python error:", "Timeout (", "Thread 0x"  # of faulthandler
POLL_S = 0.2


def job_logs_text(run: RunDir) -> str:
    """Return logs of the run's jobs and agents: last lines of the newest that are not empty, then the others' names."""
    logs = [path for path in (run.root / "submissions").glob("*") if path.suffix in _SUFFIXES]
    facts = {path: _size_and_time(path) for path in logs}
    filled = sorted((path for path in logs if facts[path][0]), key=lambda path: (facts[path][1], path.name))
    shown = filled[-MAX_JOB_LOGS:]
    others = sorted(set(logs) - set(shown))
    named = [f"{path}  ({'not shown' if facts[path][0] else 'empty'})" for path in others]
    parts = [_block(path, "", _tail_or_reason(path)) for path in shown] + ["\n".join(named)]
    return "\n\n".join(part for part in parts if part) or f"no job has written a log yet under {run.root}"


def _size_and_time(path: Path) -> tuple[int, float]:
    """Return size and time of the last change.

    What is no file counts as filled and old: reading it gives the reason.
    """
    try:
        facts = path.stat()
    except OSError:
        return 1, 0.0
    return (facts.st_size, facts.st_mtime) if stat.S_ISREG(facts.st_mode) else (1, 0.0)


def logs_of(run: RunDir, cells: Sequence[str], rank: int | None) -> Iterator[str]:
    """Yield logs of cells, in pieces: their last lines, or the whole log of one rank. InputError when there is none."""
    for number, cell in enumerate(cells):
        yield "\n" if number else ""
        yield from [cell_logs_text(run, cell) + "\n"] if rank is None else rank_log(run, cell, rank)


def rank_log(run: RunDir, cell: str, rank: int) -> Iterator[str]:
    """Yield the log of one rank of a cell's newest attempt, in pieces of whole lines, of bounded size.

    InputError when there is none.
    """
    folder, logs = rank_logs(run, cell)
    if rank not in logs:
        known = ", ".join(map(str, logs)) or "none: the cell has not started"
        raise InputError(Problem(message=f"no log of rank {rank} in {folder}", allowed=known))
    path = logs[rank]
    try:
        stream = io.TextIOWrapper(opened(path), encoding="utf-8", errors="replace", newline="\n")
    except OSError as error:
        raise InputError(Problem(message=f"cannot be read: {error.strerror}", file=str(path))) from error
    return chain([_head(path, "") + "\n"], _pieces(stream))


def _pieces(stream: TextIO) -> Iterator[str]:
    """Yield whole lines, within which secrets and commands of CI systems are recognised; a private key in one piece."""
    with stream:
        piece = ""
        while line := _line(stream):
            piece += line
            if len(piece) >= PIECE_CHARACTERS and not (ends_in_key(piece) and len(piece) < 2 * PIECE_CHARACTERS):
                yield piece
                piece = ""
        yield piece


def _line(stream: TextIO) -> str:
    """Return the next line, or the beginning of a longer one with a note; '' at the end of the stream."""
    line = stream.readline(PIECE_CHARACTERS)
    if len(line) < PIECE_CHARACTERS or line.endswith("\n"):
        return line
    rest = stream.readline(PIECE_CHARACTERS)
    while rest and not rest.endswith("\n"):
        rest = stream.readline(PIECE_CHARACTERS)
    return f"{redacted(line, environment_secrets())[:-MARGIN]} ... (a longer line)\n"


def rank_logs(run: RunDir, cell: str) -> tuple[Path, dict[int, Path]]:
    """Return the folder and logs by rank of a cell's newest attempt; of the part after the checkpoint if it resumed."""
    attempt = run.attempt(cell, newest(run, cell))
    folder = (attempt.resumed if attempt.resumed.root.is_dir() else attempt).root / "log"
    named = ((_RANK_LOG.fullmatch(path.name), path) for path in sorted(folder.glob("rank-*.log")))
    return folder, {int(match[1]): path for match, path in named if match}


def cell_logs_text(run: RunDir, cell: str) -> str:
    """Return last lines of the logs of a cell's newest attempt: of failed ranks, first failure first; else of all."""
    number = newest(run, cell)
    _, logs = rank_logs(run, cell)
    result = read_result(run, cell)
    endings = {ending.rank: ending.ended for ending in result.ranks} if result else {}
    failed = [rank for rank in logs if endings.get(rank) != "completed"]
    first = result.first_failure_rank if result else None
    failed.sort(key=lambda rank: rank != first)
    status = f"{result.status} {result.reason}".strip() if result else "has not ended"
    head = f"{cell}, attempt {number}: {status}"
    shown = failed or list(logs)
    parts = [_block(logs[rank], endings.get(rank, "no ending recorded"), _tail_or_reason(logs[rank])) for rank in shown]
    supervisors = sorted((run.attempt(cell, number).root / "log").glob("supervisor*.log"))
    parts += [_block(path, "", text) for path in supervisors if (text := _tail_or_reason(path))]
    parts += ["\n".join(f"{logs[rank]}  (completed)" for rank in logs if rank not in shown)]
    return "\n\n".join([head, *(part for part in parts if part)])


def tail(path: Path, lines: int = TAIL_LINES) -> str:
    """Return the last lines of a file without secrets, however large it is. OSError if it cannot be read."""
    with opened(path) as stream:
        start = max(stream.seek(0, os.SEEK_END) - TAIL_BYTES - MARGIN, 0)
        stream.seek(start)
        text = redacted(stream.read().decode("utf-8", errors="replace"), environment_secrets())
    if start:
        text = text[MARGIN:]
        text = text.partition("\n")[2] if "\n" in text[:-1] else f"... {text}"
    return "\n".join(text.splitlines()[-lines:])


def _tail_or_reason(path: Path) -> str:
    try:
        return "\n".join(without_noise(tail(path, 10 * TAIL_LINES)).splitlines()[-TAIL_LINES:])
    except OSError as error:
        return f"cannot be read: {error.strerror}"


def _block(path: Path, note: str, text: str) -> str:
    return "\n".join([_head(path, note), *text.splitlines()])


def _head(path: Path, note: str) -> str:
    return f"==> {path}{f' ({note})' if note else ''} <=="


def read_job_endings(run: RunDir, cells: Iterable[str]) -> dict[str, JobEnding]:
    """Return cell -> how the job of its newest attempt ended, for jobs with a recorded end."""
    attempts = {cell: newest(run, cell) for cell in cells}
    endings: dict[str, JobEnding] = {}
    for event in read_events(run.events):
        if isinstance(event, JobEnded):
            try:
                ending = _job_ending(run, event)
                order = newest_work_order(run, event.allocation)
            except (HarnessError, OSError, ValueError, TypeError):
                continue  # a damaged event or work order: the cells are judged by their rank records
            endings |= {
                ordered.cell: ending for ordered in order.cells if attempts.get(ordered.cell) == ordered.attempt
            }
    return endings


def job_logs(run: RunDir, array: str, job: str) -> list[Path]:
    """Return files for stdout and stderr of a job."""
    return [run.submission(array, f".{job}{suffix}") for suffix in (".out", ".err")]


def _job_ending(run: RunDir, event: JobEnded) -> JobEnding:
    written = [path for path in job_logs(run, event.array, event.job) if path.exists() and path.stat().st_size]
    shown = str(written[-1].relative_to(run.root)) if written else ""
    log = "\n".join(map(tail, written))
    return JobEnding(state=event.state or None, words=event.words, log=log, path=shown)


def without_noise(text: str) -> str:
    """Return the text without lines that `is_noise` names; every other character is unchanged."""
    return "".join(line for line in text.splitlines(keepends=True) if not is_noise(line))


def is_noise(line: str) -> bool:
    """Return whether a line is one that other packages write into every log."""
    return _NOISE.fullmatch(line.rstrip("\r\n")) is not None


def errors_text(run: RunDir, cells: Sequence[str]) -> Iterator[str]:
    """Yield one block for each cell that did not complete; a sentence when there is none."""
    any_failed = False
    for cell in cells:
        result = read_result(run, cell)
        if result is not None and result.status in ("failed", "error"):
            any_failed = True
            yield _cell_errors(run, cell, result) + "\n"
    if not any_failed:
        yield "every cell that has ended ran to its end; `harness report` shows what its checks found\n"


def _cell_errors(run: RunDir, cell: str, result: CellResult) -> str:
    _, logs = rank_logs(run, cell)
    ranks = [ending.rank for ending in result.ranks if ending.ended != "completed" and ending.rank in logs]
    first = result.first_failure_rank
    ranks.sort(key=lambda rank: rank != first)
    head = f"{cell}: {result.status}{f', {result.reason}' if result.reason else ''}"
    for rank in ranks or ([first] if first in logs else []):
        if rank is not None and (text := traceback_in(logs[rank])):
            return f"{head}\n==> {logs[rank]} (rank {rank}) <==\n{text}"
    return f"{head}\n  no log holds a traceback; all logs: harness logs {run.root} {cell}"


def traceback_in(path: Path) -> str:
    """Return the last traceback of a log, with those it was raised from; else the stacks of a rank that was stopped."""
    try:
        text = without_noise(tail(path, _SEARCHED_LINES))
    except OSError as error:
        return f"cannot be read: {error.strerror}"
    lines = text.splitlines()
    starts = [number for number, line in enumerate(lines) if line.strip() == _TRACEBACK_HEAD]
    if starts:
        return "\n".join(_traceback_lines(lines, starts))
    stacks = [number for number, line in enumerate(lines) if line.startswith(_STACK_HEADS)]
    return "\n".join(lines[stacks[0] :]) if stacks else ""


def _traceback_lines(lines: Sequence[str], starts: Sequence[int]) -> Sequence[str]:
    """Return the last traceback, those that it was raised from, and all lines after it: a message may have many."""
    first = starts[-1]
    for start in reversed(starts[:-1]):
        between = lines[start:first]
        if not any(
            "exception was the direct cause" in line or "another exception occurred" in line for line in between
        ):
            break
        first = start
    return lines[first:]


def follow_logs(
    run: RunDir, cells: Sequence[str], *, whole: bool, pause: Callable[[float], None] = time.sleep
) -> Iterator[str]:
    """Yield new lines of cells' ranks, or (`whole`) what happens in the run and the lines of its jobs and agents.

    Ends when every cell has a result, or no launcher follows the run. `cells`: all of the run, if `whole`.
    """
    places = _run_logs if whole else _named_rank_logs
    journal, files = Journal(run.events), _GrowingFiles()
    while True:
        ended = _all_ended(run, cells)  # asked first, so that the last lines are read
        if whole:
            yield from filter(None, map(_event_line, journal.new_events()))
        yield from files.new_lines(places(run, cells))
        if ended:
            return
        pause(POLL_S)


def _all_ended(run: RunDir, cells: Sequence[str]) -> bool:
    return launcher_of(run) is None or all(read_result(run, cell) is not None for cell in cells)


def _run_logs(run: RunDir, cells: Sequence[str]) -> Mapping[str, Path]:
    files = sorted((run.root / "submissions").glob("*"))
    return {path.stem: path for path in files if path.suffix in (".log", ".out", ".err")}


def _named_rank_logs(run: RunDir, cells: Sequence[str]) -> Mapping[str, Path]:
    named = len(cells) > 1
    return {
        f"{cell} rank {rank}" if named else f"rank {rank}": path
        for cell in cells
        for rank, path in rank_logs(run, cell)[1].items()
    }


def _event_line(event: Event) -> str:
    if isinstance(event, CellStarted):
        return f"started {event.cell}"
    if isinstance(event, CellFinished):
        return f"ended   {event.cell}: {event.status or 'unknown'}"
    return f"imported torch and Megatron in {event.import_s:.1f} s" if isinstance(event, Loaded) else ""


class _GrowingFiles:
    """Files that grow: each call gives the whole lines that were added."""

    def __init__(self) -> None:
        self._read: dict[Path, int] = {}

    def new_lines(self, files: Mapping[str, Path]) -> Iterator[str]:
        """Yield the lines added since the last call, each with the name of its file."""
        for name, path in files.items():
            for line in self._added(path):
                if not is_noise(line):
                    yield f"{name} | {line}"

    def _added(self, path: Path) -> list[str]:
        try:
            with opened(path) as stream:
                stream.seek(self._read.get(path, 0))
                text = stream.read()
        except OSError:  # removed with its run, or not yet there
            return []
        whole = text[: text.rfind(b"\n") + 1]
        self._read[path] = self._read.get(path, 0) + len(whole)
        return whole.decode("utf-8", errors="replace").splitlines()
