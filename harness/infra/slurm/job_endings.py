"""How the jobs of a run ended, as the launcher noted it, and what they printed: evidence beside the rank records."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from harness.core.errors import HarnessError
from harness.core.run.run_dir import RunDir, read_events
from harness.infra.runs.evidence_files import newest
from harness.infra.runs.logs import tail
from harness.infra.slurm.submissions import read_order
from harness.judge.failures.classification import JobEnding


def read_job_endings(run: RunDir, cells: Iterable[str]) -> dict[str, JobEnding]:
    """How the job ended that ran each cell's newest attempt, for the jobs that are known to have ended."""
    attempts = {cell: newest(run, cell) for cell in cells}
    endings: dict[str, JobEnding] = {}
    for event in read_events(run.events):
        if event["event"] == "job_ended":
            try:
                ending = _ending(run, event)
                order = read_order(run, event["allocation"])
            except (HarnessError, OSError, ValueError, TypeError, KeyError):
                continue  # a damaged note or order: the cells are judged by what their ranks left
            endings |= {cell: ending for cell, attempt in order.items() if attempts.get(cell) == attempt}
    return endings


def _ending(run: RunDir, event: Mapping[str, Any]) -> JobEnding:
    files = f"{run.submission(event['array'], '')}.{event['job']}"
    logs = [Path(f"{files}{suffix}") for suffix in (".out", ".err")]
    written = [path for path in logs if path.exists() and path.stat().st_size]
    shown = str(written[-1].relative_to(run.root)) if written else ""
    log = "\n".join(map(tail, written))
    return JobEnding(state=event["state"] or None, words=event.get("words", ""), log=log, path=shown)
