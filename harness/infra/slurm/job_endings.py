"""Reads how the jobs of a run ended, as the launcher recorded it, and their logs: evidence beside rank records."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from harness.core.errors import HarnessError
from harness.core.run.events import JobEnded
from harness.core.run.journal import read_events
from harness.core.run.run_dir import RunDir
from harness.core.run.work_order import newest_work_order
from harness.infra.runs.evidence_files import newest
from harness.infra.runs.logs import tail
from harness.judge.failures.classification import JobEnding


def read_job_endings(run: RunDir, cells: Iterable[str]) -> dict[str, JobEnding]:
    """Cell -> how the job of its newest attempt ended, for jobs with a recorded end."""
    attempts = {cell: newest(run, cell) for cell in cells}
    endings: dict[str, JobEnding] = {}
    for event in read_events(run.events):
        if isinstance(event, JobEnded):
            try:
                ending = _ending(run, event)
                order = newest_work_order(run, event.allocation)
            except (HarnessError, OSError, ValueError, TypeError):
                continue  # a damaged event or work order: the cells are judged by their rank records
            endings |= {item.cell: ending for item in order.cells if attempts.get(item.cell) == item.attempt}
    return endings


def job_logs(run: RunDir, array: str, job: str) -> list[Path]:
    """Files for stdout and stderr of a job."""
    return [run.submission(array, f".{job}{suffix}") for suffix in (".out", ".err")]


def _ending(run: RunDir, event: JobEnded) -> JobEnding:
    written = [path for path in job_logs(run, event.array, event.job) if path.exists() and path.stat().st_size]
    shown = str(written[-1].relative_to(run.root)) if written else ""
    log = "\n".join(map(tail, written))
    return JobEnding(state=event.state or None, words=event.words, log=log, path=shown)
