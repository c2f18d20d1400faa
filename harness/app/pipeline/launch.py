"""Starts the agents of a run, on this machine or through Slurm, and follows them until all cells ended."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

from harness.app.pipeline.listener import Listener
from harness.core.errors import InfrastructureError
from harness.core.run.events import Launched
from harness.core.run.journal import note
from harness.core.run.run_dir import RunDir
from harness.core.run.run_plan import Allocation, RunPlan
from harness.infra.console import say
from harness.infra.local_launcher import run_allocations
from harness.infra.slurm.client import SlurmClient
from harness.infra.slurm.follower import Follower
from harness.infra.slurm.launcher import close, close_refused, unfinished
from harness.infra.slurm.retry import allocations_of, keep_from_starting, retry
from harness.infra.slurm.submit import Submitter, jobs_of


def launch(
    run: RunDir, plan: RunPlan, parallel_ranks: int | None = None, attempts: Mapping[str, int] | None = None
) -> None:
    """Run every allocation on this machine, with live progress; returns when all cells have ended.

    `attempts`: numbers of the cells' attempts, 1 where none is named.
    """
    ranks = {cell.id: cell.config.layout.world_size for cell in plan.expansion.cells}
    begin = time.perf_counter()
    listener = Listener(run)
    listener.progress.start(len(ranks), ranks)
    try:
        run_allocations(run, plan.allocations, plan.stacks, listener, parallel_ranks, attempts)
    finally:
        listener.progress.stop()
    timing = {"launch_s": time.perf_counter() - begin, "import_s": listener.import_s}
    note(run.events, Launched(timing=timing))


def launch_on_slurm(run: RunDir, plan: RunPlan) -> None:
    """Submit the job files that were not submitted yet and follow the jobs until all have ended.

    What a job lost is submitted again at once, while the others go on.
    """
    ranks = {cell.id: cell.config.layout.world_size for cell in plan.expansion.cells}
    begin = time.perf_counter()
    listener = Listener(run)
    listener.progress.start(len(ranks), ranks)
    try:
        client = SlurmClient()
        submitter = Submitter(run, plan.run_id, client, listener.progress.note)
        follower = Follower(run, listener, client, listener.progress.queue)
        _submit_and_follow(run, unfinished(run, allocations_of(run, plan)), submitter, follower)
        for ended in follower.ended():
            keep_from_starting(plan, ended, client)
            again = retry(run, plan, ended, client)
            close(run, ended)
            _submit_and_follow(run, again, submitter, follower)
        submitter.end_duplicates(allocations_of(run, plan))
    finally:
        listener.progress.stop()
    timing = {"launch_s": time.perf_counter() - begin, "import_s": listener.import_s}
    note(run.events, Launched(timing=timing))


def _submit_and_follow(
    run: RunDir, allocations: Sequence[Allocation], submitter: Submitter, follower: Follower
) -> None:
    ids, refused = submitter.submit_all(jobs_of(allocations))
    close_refused(run, refused)
    follower.add([one for one in allocations if one.name in ids], ids)


def submit_plan(run: RunDir, plan: RunPlan) -> dict[str, str]:
    """Submit the job files that were not submitted yet and follow nothing; Slurm's job id by allocation."""
    ids, refused = Submitter(run, plan.run_id, SlurmClient(), say).submit_all(jobs_of(allocations_of(run, plan)))
    if refused:
        raise InfrastructureError("; ".join(f"{name}: {why}" for name, why in refused.items()))
    return ids
