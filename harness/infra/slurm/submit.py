"""Submits job files, each exactly once: a submission is identified by its job name, which is unique.

The intent is written to events.jsonl before sbatch is called, and the job's number after it. When the result of a call
is unclear, Slurm is queried for the name for some time before sbatch is called again. If two jobs of one name still
exist, the later one is cancelled; and only one of them can claim its cells (job_start.py).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass

from harness.core.errors import DiskFullError, InfrastructureError
from harness.core.run.events import Duplicate, NotSubmitted, Submitted, Submitting
from harness.core.run.journal import note, read_events
from harness.core.run.run_dir import RunDir
from harness.core.run.run_plan import Allocation
from harness.infra.slurm.client import ControllerAwayError, SlurmClient
from harness.infra.slurm.job_states import NamedJob
from harness.infra.slurm.sbatch_template import Job, job_name

CANCELLED = "the run was cancelled before this job was submitted"


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
    """Slurm's job id of every allocation that was submitted."""
    ids: dict[str, str] = {}
    for event in read_events(run.events):
        if isinstance(event, Submitted):
            ids |= event.allocations
    return ids


def unclear_submissions(run: RunDir) -> set[str]:
    """Submissions with a recorded intent and no recorded result."""
    begun = set()
    for event in read_events(run.events):
        if isinstance(event, Submitting):
            begun.add(event.job)
        elif isinstance(event, (Submitted, NotSubmitted)):
            begun.discard(event.job)
    return begun


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
        """Submit the rendered job files that were not submitted before. Returns Slurm's job id by allocation, and the
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
                refused |= dict.fromkeys((one.name for one in job.allocations), str(error))
                note(self.run.events, NotSubmitted(job=job.name, why=str(error)))
            if number is None:
                refused |= {one.name: CANCELLED for one in job.allocations if one.name not in refused}
                continue
            members = {one.name: f"{number}_{one.index}" if job.is_array else number for one in job.allocations}
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
        names = list({job_name(self.run_id, one.array): None for one in allocations})
        noted = submitted(self.run)
        claimed = {one.name: claims[-1].job for one in allocations if (claims := self.run.claims(one.name))}
        known = {job.partition("_")[0] for job in {**noted, **claimed}.values()}
        until = self.patience.clock() + self.patience.end_s
        with suppress(ControllerAwayError):
            found = self.client.named(names)
            self._cancel_others([job for job in found if job.number not in known], keep=None)
            while left := {job.number: job for job in found if job.runs and job.number in known}:
                if self.patience.clock() >= until:
                    for number, job in left.items():
                        self.client.cancel(job.name, [number])
                        seconds = f"{self.patience.end_s:g} s"
                        self.say(f"cancelled job {number}: it had not ended {seconds} after its agents finished")
                    return
                self.patience.sleep(self.patience.ask_s / 4)
                found = self.client.named(names)

    def _number(self, job: Job, *, begun: bool) -> str | None:
        """Submit a job unless it exists already; returns its number, None when the run was cancelled."""
        name = self._name(job)
        file = self.run.submission(job.name, ".sbatch")
        until = self.patience.clock() + self.patience.away_s
        unclear = begun
        while True:
            if unclear and (number := self._find(job, name, until)) is not None:
                return number
            if self.run.cancelled.exists():
                return None
            note(self.run.events, Submitting(job=job.name, name=name))
            try:
                return self.client.submit(file)
            except ControllerAwayError as error:
                if self.patience.clock() >= until:
                    raise
                self.say(f"{error}; looking for job {name}")
                unclear = True

    def _find(self, job: Job, name: str, until: float) -> str | None:
        """Number of the job of that name; None when there was none throughout the grace period."""
        answered: float | None = None
        while True:
            try:
                found = self.client.named([name])
            except ControllerAwayError as error:
                if self.patience.clock() >= until:
                    raise ControllerAwayError(
                        f"cannot ask Slurm whether it has job {name}; continue later with harness resume: {error}"
                    ) from error
                found = []
            else:
                answered = self.patience.clock() if answered is None else answered
            if found:
                return self._choose(job, found)
            if answered is not None and self.patience.clock() >= answered + self.patience.grace_s:
                return self.client.accounted(name)
            self.patience.sleep(self.patience.ask_s)

    def _choose(self, job: Job, found: Sequence[NamedJob]) -> str:
        """The job that has claimed its cells, else one that has not ended, else the first; the others are cancelled."""
        claims = [claim.job.partition("_")[0] for one in job.allocations for claim in self.run.claims(one.name)]
        claimed = [one for one in found if one.number in claims]
        kept = (claimed or [one for one in found if not one.ended] or list(found))[0]
        self._cancel_others(found, keep=kept)
        return kept.number

    def _cancel_others(self, found: Sequence[NamedJob], keep: NamedJob | None) -> None:
        kept = keep.number if keep else None
        for number, one in {one.number: one for one in found if not one.ended and one.number != kept}.items():
            self.client.cancel(one.name, [number])
            note(self.run.events, Duplicate(name=one.name, job=number, kept=kept))
            self.say(f"cancelled job {number}, a duplicate of job name {one.name}")

    def _name(self, job: Job) -> str:
        return job_name(self.run_id, job.allocations[0].array)
