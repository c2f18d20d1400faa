"""Follows the logs of a run as they grow, until it has ended."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from harness.core.run.events import CellFinished, CellStarted, Event, Loaded
from harness.core.run.journal import Journal
from harness.core.run.run_dir import RunDir, opened
from harness.infra.runs.evidence_files import read_result
from harness.infra.runs.lock import launcher_of
from harness.infra.runs.log_noise import is_noise
from harness.infra.runs.logs import rank_logs

POLL_S = 0.2


def follow(
    run: RunDir, cells: Sequence[str], *, whole: bool, pause: Callable[[float], None] = time.sleep
) -> Iterator[str]:
    """New lines of the ranks of cells, or (`whole`) what happens in the run and the lines of its jobs and agents.

    Ends when every cell has a result, or no launcher follows the run. `cells`: all of the run, if `whole`.
    """
    places = _job_logs if whole else _cell_logs
    journal, files = Journal(run.events), _Growing()
    while True:
        ended = _ended(run, cells)  # asked first, so that the last lines are read
        if whole:
            yield from filter(None, map(_said, journal.new_events()))
        yield from files.new_lines(places(run, cells))
        if ended:
            return
        pause(POLL_S)


def _ended(run: RunDir, cells: Sequence[str]) -> bool:
    return launcher_of(run) is None or all(read_result(run, cell) is not None for cell in cells)


def _job_logs(run: RunDir, cells: Sequence[str]) -> Mapping[str, Path]:
    files = sorted((run.root / "submissions").glob("*"))
    return {path.stem: path for path in files if path.suffix in (".log", ".out", ".err")}


def _cell_logs(run: RunDir, cells: Sequence[str]) -> Mapping[str, Path]:
    named = len(cells) > 1
    return {
        f"{cell} rank {rank}" if named else f"rank {rank}": path
        for cell in cells
        for rank, path in rank_logs(run, cell)[1].items()
    }


def _said(event: Event) -> str:
    if isinstance(event, CellStarted):
        return f"started {event.cell}"
    if isinstance(event, CellFinished):
        return f"ended   {event.cell}: {event.status or 'unknown'}"
    return f"imported torch and Megatron in {event.import_s:.1f} s" if isinstance(event, Loaded) else ""


class _Growing:
    """Files that grow: each call gives the whole lines that were added."""

    def __init__(self) -> None:
        self._read: dict[Path, int] = {}

    def new_lines(self, files: Mapping[str, Path]) -> Iterator[str]:
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
