"""Writes a run's submissions, a job file per array and a work order per allocation, and submits each exactly once.

A submission is identified by its job name, which is unique. The intent is written to events.jsonl before sbatch is
called, and the job's number after it. When the result of a call is unclear, Slurm is queried for the name for some time
before sbatch is called again. If two jobs of one name still exist, the later one is cancelled; and only one of them can
claim its cells (job_start.py).
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from harness.core.errors import DiskFullError, InfrastructureError
from harness.core.run.events import Duplicate, NotSubmitted, Submitted, Submitting, note, read_events
from harness.core.run.run_dir import RunDir, text_of, write_atomic, write_json
from harness.core.run.run_plan import Allocation, RunPlan, WorkOrder, cell_attempts, write_work_order
from harness.core.serialization import from_jsonable, loads
from harness.core.stack import ReadyStack
from harness.launch.allocations import arrays
from harness.launch.slurm.client import ControllerAwayError, NamedJob, SlurmClient
from harness.launch.slurm.sbatch_template import Job, job_name, render_job
from harness.launch.stacks.node_code import agent_environment, copy_node_code, plugin_packages
from harness.matrix.cluster import ClusterProfile, Container
from harness.matrix.schema.sections import Launch

_NOT_SUBMITTED = "the run was cancelled before this job was submitted"


def jobs_of(allocations: Iterable[Allocation], throttle: int = Job.throttle) -> list[Job]:
    """Return the submissions of allocations, one per array. `throttle`: members of an array that may run at once."""
    return [Job(name=name, allocations=members, throttle=throttle) for name, members in arrays(allocations).items()]


def write_submissions(
    run: RunDir, plan: RunPlan, profile: ClusterProfile, template: Path, launch: Launch
) -> list[Path]:
    """Write work orders, job files and the profile of a plan, all or none; return the paths of the job files."""
    jobs = jobs_of(plan.allocations, launch.throttle)
    # All texts before any file: an error in the template must not leave half a run behind.
    texts = [render(run, plan, job, profile, template) for job in jobs]
    write_json(run.cluster, profile, indent=2)
    write_atomic(run.root / "submissions" / "template.sbatch.j2", template.read_text(encoding="utf-8"))
    if plan.stacks:
        copy_node_code(run.node_code, plugin_packages(run))
    for allocation in plan.allocations:
        ranks = parallel_ranks(allocation, profile, launch)
        order_allocation(run, allocation, dict.fromkeys(allocation.cells, 1), parallel_ranks=ranks)
    for job, text in zip(jobs, texts):
        write_atomic(run.submission(job.name, ".sbatch"), text)
    return [run.submission(job.name, ".sbatch") for job in jobs]


def profile_of(run: RunDir) -> ClusterProfile:
    """Return the profile that `write_submissions` wrote."""
    return from_jsonable(ClusterProfile, loads(text_of(run.cluster)))


def render(run: RunDir, plan: RunPlan, job: Job, profile: ClusterProfile, template: Path) -> str:
    """Return the text of one job file of a plan.

    A stack runs in a container only if the stack itself names an image.
    """
    # The interpreter of this machine need not exist in an image.
    default = "python3" if profile.container else sys.executable
    stack = plan.stacks.get(job.allocations[0].stack)
    if stack is not None:
        return render_job(
            job,
            _in_container(profile, stack),
            run=run,
            run_id=plan.run_id,
            command=plan.command,
            python=stack.python,
            template=template,
            env=agent_environment(stack, run.node_code),
        )
    return render_job(
        job,
        profile,
        run=run,
        run_id=plan.run_id,
        command=plan.command,
        python=profile.python or default,
        template=template,
    )


def _in_container(profile: ClusterProfile, stack: ReadyStack) -> ClusterProfile:
    """Return the profile with the container of a stack: its image, and the worktrees beside the profile's own
    mounts.
    """
    if not stack.requested.container:
        return replace(profile, container=None)
    # A stack with an image runs in a container even if the profile names none; the image is set below.
    base = profile.container or Container(image="")
    trees = dict.fromkeys(folder for home in stack.homes for folder in home.folders)
    mounts = (*base.mounts, *(f"{tree}:{tree}" for tree in trees))
    return replace(profile, container=replace(base, image=stack.requested.container, mounts=mounts))


def order_allocation(run: RunDir, allocation: Allocation, attempts: dict[str, int], *, parallel_ranks: int) -> None:
    """Write the work order that an allocation's agents read. `attempts`: cell -> number of its attempt, in order."""
    order = WorkOrder(
        cells=cell_attempts(attempts.items()),
        parallel_ranks=parallel_ranks,
        nodes=allocation.nodes,
        ranks_per_node=allocation.ranks_per_node,
    )
    write_work_order(run, allocation.name, order)


def parallel_ranks(allocation: Allocation, profile: ClusterProfile, launch: Launch) -> int:
    """Return how many ranks run at once on a node: for cells over several nodes the ranks of one cell, else what fits.

    With GPUs as many as the job has GPUs, since each cell gets its own; a job for part of a node has GPUs for one cell.
    `launch.parallel_ranks` may lower the number.
    """
    if allocation.nodes > 1:
        return allocation.ranks_per_node
    if profile.gpus_per_node:
        gpus = profile.gpus_of(allocation.ranks_per_node)
        # Never fewer than one cell needs, or it would never start.
        return max(min(launch.parallel_ranks or gpus, gpus), allocation.ranks_per_node)
    return max(launch.parallel_ranks or profile.ranks_per_node, allocation.ranks_per_node)


@dataclass(frozen=True, kw_only=True)
class Patience:
    """Time limits for resolving an unclear submission, seconds."""

    away_s: float = 300.0  # for a controller that does not answer; then the launcher ends, and resume continues
    grace_s: float = 15.0  # after its first answer: a request in flight may still become a job
    ask_s: float = 2.0  # between queries
    end_s: float = 60.0  # for a job to end after its agents have finished
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep


def submitted(run: RunDir) -> dict[str, str]:
    """Return Slurm's job id of every allocation that was submitted."""
    ids: dict[str, str] = {}
    for event in read_events(run.events):
        if isinstance(event, Submitted):
            ids |= event.allocations
    return ids


def unclear_submissions(run: RunDir) -> set[str]:
    """Return the submissions with a recorded intent and no recorded result."""
    unclear = set()
    for event in read_events(run.events):
        if isinstance(event, Submitting):
            unclear.add(event.job)
        elif isinstance(event, (Submitted, NotSubmitted)):
            unclear.discard(event.job)
    return unclear


class Submitter:
    """Submits the jobs of a run. `say`: called with messages for the user: duplicates, waiting for the controller."""

    def __init__(
        self,
        run: RunDir,
        run_id: str,
        client: SlurmClient,
        say: Callable[[str], None],
        patience: Patience | None = None,
    ) -> None:
        self.run, self.run_id, self.client, self.say = run, run_id, client, say
        self.patience = patience or Patience()

    def submit_all(self, jobs: Iterable[Job]) -> tuple[dict[str, str], dict[str, str]]:
        """Submit the rendered job files that were not submitted before. Return Slurm's job id by allocation, and the
        reason for each allocation that was not submitted: sbatch's message, or that the run was cancelled.

        InfrastructureError when sbatch accepts nothing at all; ControllerAwayError when Slurm cannot be reached, since
        submitting again without asking could make two jobs.
        """
        ids = submitted(self.run)
        unclear = unclear_submissions(self.run)
        refused: dict[str, str] = {}
        for job in jobs:
            if job.allocations[0].name in ids:
                continue
            number = None
            try:
                number = self._number(job, begun=job.name in unclear)
            except (DiskFullError, ControllerAwayError):  # not this job's fault: resume continues here
                raise
            except InfrastructureError as error:
                refused |= dict.fromkeys((allocation.name for allocation in job.allocations), str(error))
                note(self.run.events, NotSubmitted(job=job.name, why=str(error)))
            if number is None:
                refused |= {
                    allocation.name: _NOT_SUBMITTED for allocation in job.allocations if allocation.name not in refused
                }
                continue
            members = {
                allocation.name: f"{number}_{allocation.index}" if job.is_array else number
                for allocation in job.allocations
            }
            note(self.run.events, Submitted(job=job.name, allocations=members))
            ids |= members
            if self.run.cancelled.exists():  # while sbatch was at work
                self.client.cancel(self._name(job), [number])
        if refused and not ids and not self.run.cancelled.exists():
            raise InfrastructureError(next(iter(refused.values())))
        return ids, refused

    def end_all(self, allocations: Sequence[Allocation]) -> None:
        """Wait until the jobs of this run have ended, and cancel those that do not.

        Call it when their agents have finished. Jobs that are not followed are cancelled at once: submissions that
        became jobs only after they were repeated. Does nothing when the controller does not answer.
        """
        names = list({job_name(self.run_id, allocation.array): None for allocation in allocations})
        noted = submitted(self.run)
        claimed = {
            allocation.name: claims[-1].job
            for allocation in allocations
            if (claims := self.run.claims(allocation.name))
        }
        own_numbers = {job.partition("_")[0] for job in {**noted, **claimed}.values()}
        until = self.patience.clock() + self.patience.end_s
        with suppress(ControllerAwayError):
            jobs = self.client.named(names)
            self._cancel_others([job for job in jobs if job.number not in own_numbers], keep=None)
            while running := {job.number: job for job in jobs if job.runs and job.number in own_numbers}:
                if self.patience.clock() >= until:
                    for number, job in running.items():
                        self.client.cancel(job.name, [number])
                        seconds = f"{self.patience.end_s:g} s"
                        self.say(f"cancelled job {number}: it had not ended {seconds} after its agents finished")
                    return
                self.patience.sleep(self.patience.ask_s / 4)
                jobs = self.client.named(names)

    def _number(self, job: Job, *, begun: bool) -> str | None:
        """Submit a job unless it exists already; return its number, None when the run was cancelled."""
        name = self._name(job)
        file = self.run.submission(job.name, ".sbatch")
        until = self.patience.clock() + self.patience.away_s
        unclear = begun
        while True:
            if unclear and (number := self._find(job, name, until)) is not None:
                return number
            if self.run.cancelled.exists():
                return None
            # Before the call: a launcher that is killed inside it leaves an intent, by which the next one looks for the
            # job.
            note(self.run.events, Submitting(job=job.name, name=name))
            try:
                return self.client.submit(file)
            except ControllerAwayError as error:
                if self.patience.clock() >= until:
                    raise
                self.say(f"{error}; looking for job {name}")
                unclear = True

    def _find(self, job: Job, name: str, until: float) -> str | None:
        """Return the number of the job of that name; None when there was none throughout the grace period."""
        answered: float | None = None
        while True:
            try:
                jobs = self.client.named([name])
            except ControllerAwayError as error:
                if self.patience.clock() >= until:
                    raise ControllerAwayError(
                        f"cannot ask Slurm whether it has job {name}; continue later with harness resume: {error}"
                    ) from error
                jobs = []
            else:
                answered = self.patience.clock() if answered is None else answered
            if jobs:
                return self._choose(job, jobs)
            if answered is not None and self.patience.clock() >= answered + self.patience.grace_s:
                # A short job may have run, ended and been forgotten by the controller since it was submitted.
                return self.client.accounted(name)
            self.patience.sleep(self.patience.ask_s)

    def _choose(self, job: Job, jobs: Sequence[NamedJob]) -> str:
        """Return the job that has claimed its cells, else one that has not ended, else the first.

        The others are cancelled.
        """
        claims = [
            claim.job.partition("_")[0] for allocation in job.allocations for claim in self.run.claims(allocation.name)
        ]
        claimed = [candidate for candidate in jobs if candidate.number in claims]
        chosen = (claimed or [candidate for candidate in jobs if not candidate.ended] or list(jobs))[0]
        self._cancel_others(jobs, keep=chosen)
        return chosen.number

    def _cancel_others(self, jobs: Sequence[NamedJob], keep: NamedJob | None) -> None:
        kept_number = keep.number if keep else None
        for number, job in {job.number: job for job in jobs if not job.ended and job.number != kept_number}.items():
            self.client.cancel(job.name, [number])
            note(self.run.events, Duplicate(name=job.name, job=number, kept=kept_number))
            self.say(f"cancelled job {number}, a duplicate of job name {job.name}")

    def _name(self, job: Job) -> str:
        return job_name(self.run_id, job.allocations[0].array)
