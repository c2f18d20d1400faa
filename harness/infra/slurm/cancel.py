"""Cancels the jobs of a run, found by name: all of them, also those without a recorded number, and no others."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterable

from harness.core.run.run_dir import RunDir, write_json
from harness.core.run.run_plan import Allocation
from harness.infra.launcher import Cancelled
from harness.infra.slurm.client import SlurmClient
from harness.infra.slurm.closing import unfinished
from harness.infra.slurm.job_states import NamedJob
from harness.infra.slurm.sbatch_template import job_name
from harness.infra.slurm.submit import Patience, submitted, unclear_submissions


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
        write_json(run.cancelled, {"time": time.time(), "by": holder})
    names = list({job_name(run_id, one.array): None for one in allocations})
    ended: dict[str, None] = {}
    until = patience.clock() + patience.grace_s
    while True:
        found = client.named(names)
        live = [job for job in found if not job.ended and job.state != "COMPLETING"]
        for name in {job.name: None for job in live}:
            client.cancel(name, _numbers(job for job in live if job.name == name))
        ended |= dict.fromkeys(_numbers(live))
        unclear = unclear_submissions(run) and not _all_found(run, run_id, allocations, found)
        if not (live or unclear) or patience.clock() >= until:
            break
        patience.sleep(patience.ask_s / 4)
    known = {job.partition("_")[0] for job in submitted(run).values()} | {job.number for job in found}
    return Cancelled(ended=tuple(ended), over=len(known - ended.keys()), left=tuple(_numbers(live)))


def _numbers(jobs: Iterable[NamedJob]) -> list[str]:
    return list({job.number: None for job in jobs})


def _all_found(run: RunDir, run_id: str, allocations: Iterable[Allocation], found: Iterable[NamedJob]) -> bool:
    """Whether every unclear submission has a job by now."""
    unclear = unclear_submissions(run)
    there = {job.name for job in found}
    return all(job_name(run_id, one.array) in there for one in allocations if one.array in unclear)
