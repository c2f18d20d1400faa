"""Records how the jobs of a run ended, and writes results for their unfinished cells; submission is in submit.py."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping

from harness.core.run.events import JobEnded, Refused
from harness.core.run.journal import note, read_events
from harness.core.run.log_secrets import without_secrets_in
from harness.core.run.run_dir import RunDir, text_of
from harness.core.run.run_plan import Allocation
from harness.core.run.work_order import newest_work_order
from harness.core.serialization import loads
from harness.core.text.secrets import secret_values
from harness.infra.runs.error_result import end_as_error
from harness.infra.slurm.follower import Ended
from harness.infra.slurm.job_endings import job_logs


def unfinished(run: RunDir, allocations: Iterable[Allocation]) -> list[Allocation]:
    """Allocations without a recorded end of their job."""
    done = {event.allocation for event in read_events(run.events) if isinstance(event, (JobEnded, Refused))}
    return [allocation for allocation in allocations if allocation.name not in done]


def second_agents(run: RunDir, allocation: Allocation) -> list[str]:
    """What second agents of a node say, of the newest start of an allocation's job."""
    order = run.newest_order(allocation.name)
    files = (run.second_agent(order, node) for node in range(allocation.nodes))
    return [str(loads(text_of(file))["reason"]) for file in files if file.exists()]


def close(run: RunDir, one: Ended) -> None:
    """Record how a job ended, and write ERROR with the reason as the result of each cell that has none.

    Secrets are removed from its logs.
    """
    for log in job_logs(run, one.allocation.array, one.job):
        without_secrets_in(log, secret_values(os.environ))
    known = f"{one.state.state} (exit {one.state.exit_code or '?'})" if one.state.source else "unknown to Slurm"
    ended = (
        f"{one.state.ending(one.job)} before the cell ended"
        if one.state.has_cause
        else f"job {one.job} ended before the cell did"
    )
    reason = f"Slurm {ended}: {known}" + (f" on {one.state.nodes}" if one.state.nodes else "")
    reason += "; the run directory's disk was full" if one.state.disk_full else ""
    for cell, attempt in newest_work_order(run, one.allocation.name).attempts.items():
        end_as_error(run, cell, attempt, reason)
    over = one.state.ended  # Slurm is not asked about an agent that finished
    ended_job = JobEnded(
        allocation=one.allocation.name,
        array=one.allocation.array,
        job=one.job,
        state=one.state.state if over else "",
        words=one.state.ending(one.job) if over else "",
    )
    note(run.events, ended_job)


def close_refused(run: RunDir, refused: Mapping[str, str]) -> None:
    """Record allocations that sbatch refused, and write an error for each of their cells; `resume` skips them."""
    for name, why in refused.items():
        for cell, attempt in newest_work_order(run, name).attempts.items():
            end_as_error(run, cell, attempt, why)
        note(run.events, Refused(allocation=name, why=why))
