"""Runs allocations as Slurm jobs: submits their job files, follows their agents' journals, asks Slurm how they are.

Truth is what the agents write. Slurm is asked, in one call for all jobs and ever more seldom, only whether a job that
has not said that it finished may still do so. Every submission stands in events.jsonl before and after it is made, so
that another launcher can go on (`resume`) without submitting a job twice.
"""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from harness.edge.journal import Journal, read_events
from harness.edge.run_dir import RunDir, append_line, write_json
from harness.edge.sbatch_template import Job, job_name
from harness.edge.slurm_state import CALL_TIMEOUT_S, JobState, SlurmClient
from harness.edge.submissions import read_order
from harness.edge.submitit_executor import submit
from harness.plan.allocations import arrays
from harness.words.records import CellResult
from harness.words.run_plan import Allocation

Listener = Callable[[dict[str, Any]], None]
LOOK_S = 0.2  # between looks at the journals
FIRST_ASK_S = 2.0  # between questions to Slurm, growing while nothing happens
LONGEST_ASK_S = 30.0
SURE_AFTER_S = (
    4.0  # a job seen as ended twice, so far apart, has ended: one being requeued shows its old end for a moment
)
LOST_AFTER_S = 60.0  # Slurm knows nothing of the job and its agent is silent


@dataclass
class Following:
    """An allocation that has been submitted and has not ended."""

    allocation: Allocation
    job: str  # Slurm's id, "12" or "12_3"
    journal: Journal
    state: JobState = field(default_factory=JobState)
    first_ended: float | None = None  # local time at which Slurm first said that it had ended
    last_heard: float = field(default_factory=time.monotonic)
    last_beat: int = 0  # modification time of the leading agent's heartbeat, ns


@dataclass(frozen=True)
class Ended:
    """How an allocation ended; `finished`: its leading agent said so itself."""

    allocation: Allocation
    job: str
    state: JobState
    finished: bool


def jobs_of(allocations: Iterable[Allocation]) -> list[Job]:
    """The submissions of allocations, as their job files were written."""
    return [Job(name=name, allocations=members) for name, members in arrays(allocations).items()]


def submit_all(run: RunDir, run_id: str, jobs: Iterable[Job]) -> dict[str, str]:
    """Submit the rendered job files that were not submitted before; Slurm's job id by allocation.

    A submission that was begun and not recorded is looked for by its job name first. InfrastructureError when sbatch
    refuses; what was submitted by then stays recorded.
    """
    ids = submitted(run)
    begun = {event["job"] for event in read_events(run.events) if event["event"] == "submitting"}
    for job in jobs:
        if job.allocations[0].name in ids:
            continue
        number = _find(job_name(run_id, job.allocations[0].array)) if job.name in begun else None
        if number is None:
            append_line(run.events, {"time": time.time(), "event": "submitting", "job": job.name})
            text = run.submission(job.name, ".sbatch").read_text(encoding="utf-8")
            number = submit(text, run.root / "submissions" / "submitit")
        members = {
            allocation.name: f"{number}_{allocation.index}" if job.is_array else number
            for allocation in job.allocations
        }
        append_line(run.events, {"time": time.time(), "event": "submitted", "job": job.name, "allocations": members})
        ids |= members
    return ids


def submitted(run: RunDir) -> dict[str, str]:
    """Slurm's job id of every allocation that was submitted."""
    ids: dict[str, str] = {}
    for event in read_events(run.events):
        if event["event"] == "submitted":
            ids |= event["allocations"]
    return ids


def _find(name: str) -> str | None:
    """Number of a job of that name that Slurm still knows; None when there is none."""
    argv = ["squeue", "-h", "-t", "all", "-o", "%A", f"--name={name}"]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=CALL_TIMEOUT_S)
    return done.stdout.split()[0] if done.returncode == 0 and done.stdout.split() else None


def follow(
    run: RunDir,
    ids: Mapping[Allocation, str],
    listener: Listener,
    client: SlurmClient,
    settle: Callable[[Ended], Mapping[Allocation, str]],
) -> None:
    """Pass on the agents' events until every allocation has ended; `ids` holds Slurm's job id of each.

    `settle` is told at once how each ended, while the others go on, and may answer with allocations to follow as well.
    """
    waiting = [_following(run, *item) for item in ids.items()]
    ask_s, next_ask = FIRST_ASK_S, time.monotonic()
    while waiting:
        moved = False
        for one in list(waiting):
            finished = _pass_on(one, listener)
            moved |= one.last_heard >= next_ask - ask_s
            if finished or _is_over(one):
                waiting.remove(one)
                more = settle(Ended(one.allocation, one.job, one.state, finished))
                waiting += [_following(run, *item) for item in more.items()]
        if time.monotonic() >= next_ask:
            states = client.states([one.job for one in waiting])
            for one in waiting:
                _take(one, states[one.job])
            doubtful = any(one.first_ended is not None for one in waiting)
            ask_s = FIRST_ASK_S if moved or doubtful else min(ask_s * 1.5, LONGEST_ASK_S)
            next_ask = time.monotonic() + ask_s
        time.sleep(LOOK_S)


def _following(run: RunDir, allocation: Allocation, job: str) -> Following:
    return Following(allocation=allocation, job=job, journal=Journal(run.agent_journal(allocation.name, 0)))


def _pass_on(one: Following, listener: Listener) -> bool:
    """New events to the listener; whether the leading agent says that it has finished."""
    finished = False
    for event in one.journal.new_events():
        one.last_heard = time.monotonic()
        finished |= event["event"] == "finished"
        listener(event)
    heartbeat = one.journal.path.with_suffix(".heartbeat")
    beat = heartbeat.stat().st_mtime_ns if heartbeat.exists() else 0
    if beat != one.last_beat:
        one.last_beat, one.last_heard = beat, time.monotonic()
    return finished


def _take(one: Following, state: JobState) -> None:
    one.state = state if state.state != "UNKNOWN" else one.state
    if not state.ended:
        one.first_ended = None
    elif one.first_ended is None:
        one.first_ended = time.monotonic()
    if not state.answered and one.last_beat == 0:  # it may still be waiting in the queue of a controller that is away
        one.last_heard = time.monotonic()
    if state.state in ("PENDING", "CONFIGURING", "RUNNING", "COMPLETING", "REQUEUED", "SUSPENDED"):
        one.last_heard = time.monotonic()


def _is_over(one: Following) -> bool:
    now = time.monotonic()
    sure = one.first_ended is not None and now > one.first_ended + SURE_AFTER_S
    return sure or now > one.last_heard + LOST_AFTER_S


def close(run: RunDir, ended: Iterable[Ended]) -> None:
    """Give every cell that its job left without a result one that says why."""
    for one in ended:
        known = one.state.state if one.state.source else "unknown to Slurm"
        place = f" on {one.state.nodes}" if one.state.nodes else ""
        reason = f"Slurm job {one.job} ended before the cell did: {known} (exit {one.state.exit_code or '?'}){place}"
        reason += "; the run directory's disk was full" if one.state.disk_full else ""
        for cell, attempt in read_order(run, one.allocation.name).items():
            result = run.attempt(cell, attempt).result
            if not result.exists():
                now = time.time()
                missing = CellResult(cell=cell, attempt=attempt, status="error", reason=reason)
                missing.started = missing.finished = now
                write_json(result, missing)
