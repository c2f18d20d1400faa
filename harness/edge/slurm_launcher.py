"""Submits allocations as Slurm jobs, each once, and notes how they ended.

Every submission stands in events.jsonl before and after it is made, so that another launcher can go on (`resume`)
without submitting a job twice.
"""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterable, Mapping

from harness.edge.run_dir import RunDir, append_line, read_events, write_json
from harness.edge.sbatch_template import Job, job_name
from harness.edge.slurm_follower import Ended
from harness.edge.slurm_state import CALL_TIMEOUT_S
from harness.edge.submissions import read_order
from harness.edge.submitit_executor import ControllerAwayError, submit
from harness.plan.allocations import arrays
from harness.words.errors import DiskFullError, InfrastructureError
from harness.words.records import CellResult
from harness.words.run_plan import Allocation

CONTROLLER_AWAY_S = (2.0, 5.0, 10.0, 20.0, 30.0)  # pauses before submitting again
BEGUN_S = 5.0  # for the sbatch of a launcher that was killed, which may be at work still
LOOK_S = 0.2  # between questions for it


def jobs_of(allocations: Iterable[Allocation]) -> list[Job]:
    """The submissions of allocations, as their job files were written."""
    return [Job(name=name, allocations=members) for name, members in arrays(allocations).items()]


def submit_all(run: RunDir, run_id: str, jobs: Iterable[Job]) -> tuple[dict[str, str], dict[str, str]]:
    """Submit the rendered job files that were not submitted before; Slurm's job id by allocation, and of the
    allocations that sbatch refused, what it said.

    A submission that was begun and not recorded is looked for by its job name first. InfrastructureError when sbatch
    accepts nothing at all, or when Slurm cannot be reached: to submit again without asking could make two jobs.
    """
    ids = submitted(run)
    refused: dict[str, str] = {}
    begun = {event["job"] for event in read_events(run.events) if event["event"] == "submitting"}
    for job in jobs:
        if job.allocations[0].name in ids:
            continue
        name = job_name(run_id, job.allocations[0].array)
        number = _find(name, BEGUN_S) if job.name in begun else None
        append_line(run.events, {"time": time.time(), "event": "submitting", "job": job.name})
        try:
            number = number or _submit(run, job, name)
        except (DiskFullError, ControllerAwayError):  # not this job's fault: another launcher may go on from here
            raise
        except InfrastructureError as error:
            refused |= dict.fromkeys((allocation.name for allocation in job.allocations), str(error))
            continue
        members = {
            allocation.name: f"{number}_{allocation.index}" if job.is_array else number
            for allocation in job.allocations
        }
        append_line(run.events, {"time": time.time(), "event": "submitted", "job": job.name, "allocations": members})
        ids |= members
    if refused and not ids:
        raise InfrastructureError(next(iter(refused.values())))
    return ids, refused


def _submit(run: RunDir, job: Job, name: str) -> str:
    """Submit one job file; again for a while when the controller does not answer, unless it has the job already."""
    text = run.submission(job.name, ".sbatch").read_text(encoding="utf-8")
    tried = False
    for pause_s in CONTROLLER_AWAY_S:
        try:
            return (_find(name) if tried else None) or submit(text, run.root / "submissions" / "submitit")
        except ControllerAwayError:
            tried = True
            time.sleep(pause_s)
    return _find(name) or submit(text, run.root / "submissions" / "submitit")


def submitted(run: RunDir) -> dict[str, str]:
    """Slurm's job id of every allocation that was submitted."""
    ids: dict[str, str] = {}
    for event in read_events(run.events):
        if event["event"] == "submitted":
            ids |= event["allocations"]
    return ids


def _find(name: str, patience_s: float = 0.0) -> str | None:
    """Number of a job of that name that Slurm still knows; None when there is none, also after `patience_s`.

    ControllerAwayError when Slurm cannot be asked.
    """
    argv = ["squeue", "-h", "-t", "all", "-o", "%F", f"--name={name}"]  # %F: of an array its own number, not a member's
    unknown = f"cannot ask Slurm whether it has job {name}; resume later"
    until = time.monotonic() + patience_s
    while True:
        try:
            done = subprocess.run(argv, capture_output=True, text=True, timeout=CALL_TIMEOUT_S)
        except subprocess.TimeoutExpired as error:
            raise ControllerAwayError(unknown) from error
        if done.returncode != 0:
            raise ControllerAwayError(
                f"cannot ask Slurm whether it has job {name}; resume later: {done.stderr.strip()}"
            )
        if done.stdout.split():
            return done.stdout.split()[0]
        if time.monotonic() > until:
            return _find_ended(name) if patience_s else None
        time.sleep(LOOK_S)


def _find_ended(name: str) -> str | None:
    """Number of a job of that name that the controller has forgotten and accounting, where there is any, has not."""
    argv = ["sacct", "-n", "-X", "-P", "-S", "now-30days", "-o", "JobID", f"--name={name}"]
    try:
        done = subprocess.run(argv, capture_output=True, text=True, timeout=CALL_TIMEOUT_S)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.split()[0].partition("_")[0] if done.returncode == 0 and done.stdout.split() else None


def unfinished(run: RunDir, allocations: Iterable[Allocation]) -> list[Allocation]:
    """Those whose end no launcher has dealt with yet."""
    done = {event["allocation"] for event in read_events(run.events) if event["event"] in ("job_ended", "refused")}
    return [allocation for allocation in allocations if allocation.name not in done]


def close(run: RunDir, one: Ended) -> None:
    """Note how a job ended, and give every cell that it left without a result one that says why."""
    known = one.state.state if one.state.source else "unknown to Slurm"
    place = f" on {one.state.nodes}" if one.state.nodes else ""
    reason = f"Slurm job {one.job} ended before the cell did: {known} (exit {one.state.exit_code or '?'}){place}"
    reason += "; the run directory's disk was full" if one.state.disk_full else ""
    for cell, attempt in read_order(run, one.allocation.name).items():
        give_up(run, cell, attempt, reason)
    state = one.state.state if one.state.ended else ""  # an agent that finished is not asked after
    names = {"allocation": one.allocation.name, "array": one.allocation.array, "job": one.job}
    append_line(run.events, {"time": time.time(), "event": "job_ended", **names, "state": state})


def close_refused(run: RunDir, refused: Mapping[str, str]) -> None:
    """The same for allocations that sbatch did not take; `resume` does not submit them again."""
    for name, why in refused.items():
        for cell, attempt in read_order(run, name).items():
            give_up(run, cell, attempt, why)
        append_line(run.events, {"time": time.time(), "event": "refused", "allocation": name, "why": why})


def give_up(run: RunDir, cell: str, attempt: int, reason: str) -> None:
    """The result of a cell that its agent has written none of."""
    result = run.attempt(cell, attempt).result
    if not result.exists():
        now = time.time()
        missing = CellResult(cell=cell, attempt=attempt, status="error", reason=reason, started=now, finished=now)
        write_json(result, missing)
