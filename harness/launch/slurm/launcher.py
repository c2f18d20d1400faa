"""Runs allocations as Slurm jobs: submits them, follows them, and resubmits cells that a job lost.

Jobs are cancelled by name: all of a run's, also those without a recorded number, and no others.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from harness.core.errors import InfrastructureError
from harness.core.run.run_dir import RunDir, write_json
from harness.core.run.run_plan import Allocation, RunPlan
from harness.infra.screen import relative_path
from harness.inputs.cluster_file import template_of
from harness.launch.launcher import Cancelled, Observer
from harness.launch.slurm.client import NamedJob, SlurmClient
from harness.launch.slurm.follow import (
    Ended,
    Follower,
    allocations_of,
    close,
    close_refused,
    keep_from_starting,
    retry,
    second_agents,
    unfinished,
)
from harness.launch.slurm.sbatch_template import job_name
from harness.launch.slurm.submit import Patience, Submitter, jobs_of, submitted, unclear_submissions, write_submissions
from harness.matrix.cluster import ClusterProfile
from harness.matrix.schema.sections import Launch


class SlurmLauncher:
    """A Launcher for Slurm. Job files are written before anything is submitted."""

    detached = True

    def __init__(self) -> None:
        self.client = SlurmClient()

    def write(self, run: RunDir, plan: RunPlan, launch: Launch, profile: ClusterProfile, file: Path | None) -> None:
        write_submissions(run, plan, profile, template_of(profile, file), launch)

    def describe(self, run: RunDir, plan: RunPlan) -> list[str]:
        lines = ["Nothing is submitted. Job files:"]
        for job in jobs_of(plan.allocations):
            path = run.submission(job.name, ".sbatch")
            start = self.client.expected_start(path)
            lines.append(f"  {relative_path(path)}" + (f"  (Slurm would start it at {start})" if start else ""))
        return lines

    def submit(self, run: RunDir, plan: RunPlan, say: Callable[[str], None]) -> int:
        submitter = Submitter(run, plan.run_id, self.client, say)
        ids, refused = submitter.submit_all(jobs_of(allocations_of(run, plan)))
        if refused:
            raise InfrastructureError("; ".join(f"{name}: {why}" for name, why in refused.items()))
        return len(ids)

    def follow(self, run: RunDir, plan: RunPlan, observer: Observer) -> None:
        """Resubmit cells that a job lost at once, while the other jobs run on."""
        submitter = Submitter(run, plan.run_id, self.client, observer.note)
        follower = Follower(run, observer.event, self.client, observer.queue)
        _submit_and_follow(run, unfinished(run, allocations_of(run, plan)), submitter, follower)
        for ended in follower.ended():
            for reason in second_agents(run, ended.allocation):
                observer.note(reason)
            again = _close_and_retry(run, plan, ended, self.client)
            _submit_and_follow(run, again, submitter, follower)
        submitter.end_all(allocations_of(run, plan))

    def cancel(self, run: RunDir, plan: RunPlan) -> Cancelled:
        return cancel_run(run, plan.run_id, allocations_of(run, plan), self.client)


def close_ended(run: RunDir, plan: RunPlan, follower: Follower, client: SlurmClient) -> None:
    """Record the jobs that have ended while no launcher followed them, so that `retry_requested` knows their cells.

    Submits nothing. Retries that this makes are submitted when the run is followed.
    """
    ids = submitted(run)
    follower.add(
        [allocation for allocation in unfinished(run, allocations_of(run, plan)) if allocation.name in ids], ids
    )
    for ended in follower.ended(wait=False):
        _close_and_retry(run, plan, ended, client)


def _close_and_retry(run: RunDir, plan: RunPlan, ended: Ended, client: SlurmClient) -> list[Allocation]:
    # Before the results are written: a job that Slurm restarts now would find cells that are already being closed.
    keep_from_starting(plan, ended, client)
    # Before `close`, which gives every unfinished cell a result, so that they would no longer look cut off.
    again = retry(run, plan, ended, client)
    close(run, ended)
    return again


def _submit_and_follow(
    run: RunDir, allocations: Sequence[Allocation], submitter: Submitter, follower: Follower
) -> None:
    ids, refused = submitter.submit_all(jobs_of(allocations))
    close_refused(run, refused)
    follower.add([allocation for allocation in allocations if allocation.name in ids], ids)


def cancel_run(
    run: RunDir,
    run_id: str,
    allocations: Iterable[Allocation],
    client: SlurmClient,
    patience: Patience | None = None,
) -> Cancelled:
    """Forbid further submissions and agents, then cancel the existing jobs, and those that still appear.

    A run whose jobs have all ended is left as it is. An unclear submission is waited for, up to the grace
    period. ControllerAwayError when Slurm cannot be asked; the run stays cancelled.
    """
    patience = patience or Patience()
    allocations = list(allocations)
    if unfinished(run, allocations):
        holder = f"pid {os.getpid()} on {socket.gethostname()}"
        # First: from here on no launcher submits and no agent claims, so the list of jobs can only shrink.
        write_json(run.cancelled, {"time": time.time(), "by": holder})
    names = list({job_name(run_id, allocation.array): None for allocation in allocations})
    ended: dict[str, None] = {}
    until = patience.clock() + patience.grace_s
    while True:
        jobs = client.named(names)
        # A COMPLETING job has no processes left, and can last minutes where the node's epilog is slow.
        live = [job for job in jobs if not job.ended and job.state != "COMPLETING"]
        for name in {job.name: None for job in live}:
            client.cancel(name, _job_numbers(job for job in live if job.name == name))
        ended |= dict.fromkeys(_job_numbers(live))
        unclear = unclear_submissions(run) and not _all_submissions_found(run, run_id, allocations, jobs)
        if not (live or unclear) or patience.clock() >= until:
            break
        patience.sleep(patience.ask_s / 4)
    numbers = {job.partition("_")[0] for job in submitted(run).values()} | {job.number for job in jobs}
    return Cancelled(ended=tuple(ended), over=len(numbers - ended.keys()), left=tuple(_job_numbers(live)))


def _job_numbers(jobs: Iterable[NamedJob]) -> list[str]:
    return list({job.number: None for job in jobs})


def _all_submissions_found(
    run: RunDir, run_id: str, allocations: Iterable[Allocation], jobs: Iterable[NamedJob]
) -> bool:
    """Return whether every unclear submission has a job by now."""
    unclear = unclear_submissions(run)
    there = {job.name for job in jobs}
    return all(job_name(run_id, allocation.array) in there for allocation in allocations if allocation.array in unclear)
