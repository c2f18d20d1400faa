"""The client of Slurm: what it says of jobs, one call for all of them; scancel. Silence is `unknown`, never success.

Jobs are submitted in submitit_executor.py.
"""

from __future__ import annotations

import os
import re
import subprocess
import time
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from harness.core.errors import DiskFullError, InfrastructureError

CALL_TIMEOUT_S = 20.0
ACCOUNTING_AGAIN_S = 300.0  # after sacct failed: a service that is away makes every call take long
TERMINAL = frozenset(
    ("BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED")
    + ("NODE_FAIL", "OUT_OF_MEMORY", "PREEMPTED", "REVOKED", "TIMEOUT")
)
_MAY_BE_REQUEUED = frozenset({"BOOT_FAIL", "FAILED", "NODE_FAIL", "PREEMPTED"})
_NO_NODES = "None assigned"  # sacct, of a job that never started
_UNUSABLE = "down,drain,fail,no_respond"
_NO_SUCH_JOB = "Invalid job id specified"  # squeue's words for a single job that is not in memory any more
_WHOLE_LISTS = {"SLURM_BITSTR_LEN": "0"}  # else the list of an array's pending members is cut after 64 characters
_MEMBERS = re.compile(r"(\d+)_\[([^\]%]*)(?:%\d+)?\]")
_SPAN = re.compile(r"(\d+)(?:-(\d+)(?::(\d+))?)?")
_LIMIT = re.compile(r"(?:(\d+)-)?(?:(\d+):)?(\d+):(\d+)")  # [days-][hours:]minutes:seconds
_NAMES_AT_ONCE = 500  # of 64 characters, in one argument


class ControllerAwayError(InfrastructureError):
    """Slurm's controller could not be reached, or it is not known whether it heard the request."""


@dataclass(frozen=True, kw_only=True)
class JobState:
    """State of one job or array member, as Slurm names it; "UNKNOWN" when Slurm says nothing of it."""

    state: str = "UNKNOWN"
    answered: bool = True  # false: Slurm could not be asked, so UNKNOWN does not mean that it lost the job
    exit_code: str = ""  # "3:0": exit status, signal
    nodes: str = ""
    source: str = ""  # sacct | squeue
    limit_min: int | None = None  # the job's time limit, minutes
    cancelled_by: str = ""  # uid; only accounting knows

    @property
    def ended(self) -> bool:
        """Slurm is sure that the job runs no more. Preempted and failed jobs that are requeued show as PENDING."""
        return self.state in TERMINAL

    @property
    def disk_full(self) -> bool:
        """An agent of the job had no room in the run directory; only accounting knows."""
        return self.exit_code == f"{DiskFullError.process_exit_code}:0"

    @property
    def named(self) -> bool:
        """`ending` says more than the state alone."""
        return self.state in ("TIMEOUT", "CANCELLED")

    def ending(self, job: str) -> str:
        """How the job ended, as a sentence without its end."""
        if self.state == "TIMEOUT":
            limit = f" of {self.limit_min} min" if self.limit_min is not None else ""
            return f"job {job} hit its time limit{limit}"
        if self.state == "CANCELLED":
            return f"job {job} was cancelled" + (f" by uid {self.cancelled_by}" if self.cancelled_by else "")
        return f"job {job} ended as {self.state}"


@dataclass(frozen=True, kw_only=True)
class NamedJob:
    """A job or the members of an array that share a state, found by the job's name."""

    number: str  # of an array its own, not a member's
    name: str
    state: str
    submitted: str = ""  # as Slurm shows it, local time

    @property
    def ended(self) -> bool:
        return self.state in TERMINAL


@dataclass(frozen=True, kw_only=True)
class Pending:
    """Why a job waits in the queue, in Slurm's word, and when Slurm expects to start it."""

    reason: str
    start: str = ""  # local time like 2027-01-31T12:00:00; empty when Slurm cannot say


class SlurmClient:
    """Asks for many jobs in one call: sacct where accounting answers, else squeue. Counts its calls."""

    def __init__(self) -> None:
        self.calls = 0
        self._accounting_from = 0.0  # when sacct may be asked, on the monotonic clock

    def states(self, jobs: Sequence[str], silent: Collection[str] = ()) -> dict[str, JobState]:
        """State of every asked job ("12" or "12_3"); UNKNOWN for those that Slurm does not mention.

        Of `silent` jobs the controller must say that they run: accounting that was away when a job ended shows it
        as RUNNING for ever.
        """
        found: dict[str, JobState] = {}
        answered = True
        if jobs and time.monotonic() >= self._accounting_from:
            text = self._call(
                ["sacct", "-n", "-P", "-X", "-o", "JobID,State,ExitCode,NodeList,Timelimit", "-j", _roots(jobs)]
            )
            if text is None:
                self._accounting_from = time.monotonic() + ACCOUNTING_AGAIN_S
            found = parse_sacct(text or "")
        # sacct lags behind, and shows the old end of a requeued job until it runs again; squeue knows the last minutes.
        unsure = [job for job in silent if job in found and not found[job].ended]
        doubtful = [job for job in jobs if job not in found or found[job].state in _MAY_BE_REQUEUED or job in unsure]
        if doubtful:
            text = self._call(["squeue", "-h", "-t", "all", "-o", "%i|%T|%N|%l", "-j", _roots(doubtful)])
            answered = text is not None
            queue = parse_squeue(text or "")
            if answered:
                found = {job: state for job, state in found.items() if job not in unsure}
            found |= {job: queue[job] for job in doubtful if job in queue and not (job in found and queue[job].ended)}
        return {job: found.get(job, JobState(answered=answered)) for job in jobs}

    def pending(self, jobs: Sequence[str]) -> dict[str, Pending]:
        """Of those of the jobs that wait in the queue, why; empty when Slurm cannot be asked."""
        if not jobs:
            return {}
        text = self._call(["squeue", "-h", "-t", "PENDING", "-o", "%i|%S|%r", "-j", _roots(jobs)])
        found = parse_pending(text or "")
        return {job: found[job] for job in jobs if job in found}

    def named(self, names: Sequence[str]) -> list[NamedJob]:
        """The jobs of these names that the controller knows, in the order of their submission.

        ControllerAwayError when it cannot be asked.
        """
        found: list[NamedJob] = []
        for begin in range(0, len(names), _NAMES_AT_ONCE):
            some = ",".join(names[begin : begin + _NAMES_AT_ONCE])
            text = self._call(["squeue", "-h", "-t", "all", "-o", "%F|%V|%T|%j", f"--name={some}"])
            if text is None:
                raise ControllerAwayError("Slurm's controller does not answer squeue")
            found += parse_named(text)
        return sorted(found, key=lambda job: (job.submitted, int(job.number)))

    def accounted(self, name: str) -> str | None:
        """Number of a job of that name that accounting knows, also when the controller has forgotten it."""
        text = self._call(["sacct", "-n", "-X", "-P", "-S", "now-30days", "-o", "JobID", f"--name={name}"])
        return text.split()[0].partition("_")[0] if text and text.split() else None

    def cancel(self, name: str, jobs: Sequence[str]) -> None:
        """End those of the jobs that have this name: Slurm may have given an old number to somebody else's job."""
        if jobs:
            self._call(["scancel", f"--name={name}", *jobs])

    def unusable(self, nodes: str) -> str:
        """Those of a node list ("n[1-4]") that cannot run jobs now, as a list for --exclude; empty when all can."""
        return ",".join((self._call(["sinfo", "-h", "-N", "-n", nodes, "-t", _UNUSABLE, "-o", "%N"]) or "").split())

    def _call(self, argv: list[str]) -> str | None:
        """Standard output, or None when the command fails or hangs: the state stays unknown then.

        That Slurm knows none of the jobs is an answer, an empty one.
        """
        self.calls += 1
        try:
            done = subprocess.run(
                argv,
                env={**os.environ, **_WHOLE_LISTS},
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=CALL_TIMEOUT_S,
            )
        except (OSError, subprocess.TimeoutExpired):
            return None
        return done.stdout if done.returncode == 0 or _NO_SUCH_JOB in done.stderr else None


def _roots(jobs: Iterable[str]) -> str:
    """Job numbers without array members, each once: Slurm answers for all members of an array."""
    return ",".join(dict.fromkeys(job.partition("_")[0] for job in jobs))


def parse_sacct(text: str) -> dict[str, JobState]:
    """`sacct -n -P -X -o JobID,State,ExitCode,NodeList,Timelimit`. "CANCELLED by 0" is CANCELLED."""
    found: dict[str, JobState] = {}
    for line in text.splitlines():
        fields = line.split("|")
        if len(fields) != 5 or not fields[1]:
            continue
        state, _, by = fields[1].partition(" by ")
        one = JobState(
            state=state.split()[0],
            exit_code=fields[2],
            nodes=fields[3] if fields[3] != _NO_NODES else "",
            source="sacct",
            limit_min=minutes(fields[4]),
            cancelled_by=by,
        )
        found |= dict.fromkeys(members(fields[0]), one)
    return found


def parse_squeue(text: str) -> dict[str, JobState]:
    """`squeue -h -t all -o "%i|%T|%N|%l"`."""
    found: dict[str, JobState] = {}
    for line in text.splitlines():
        fields = line.split("|")
        if len(fields) == 4:
            one = JobState(state=fields[1], nodes=fields[2], source="squeue", limit_min=minutes(fields[3]))
            found |= dict.fromkeys(members(fields[0]), one)
    return found


def parse_pending(text: str) -> dict[str, Pending]:
    """`squeue -h -t PENDING -o "%i|%S|%r"`."""
    found: dict[str, Pending] = {}
    for line in text.splitlines():
        fields = line.split("|", 2)
        if len(fields) == 3:
            one = Pending(reason=fields[2], start=fields[1] if fields[1][:1].isdecimal() else "")
            found |= dict.fromkeys(members(fields[0]), one)
    return found


def parse_named(text: str) -> list[NamedJob]:
    """`squeue -h -t all -o "%F|%V|%T|%j"`."""
    rows = (line.split("|", 3) for line in text.splitlines())
    return [
        NamedJob(number=row[0], submitted=row[1], state=row[2], name=row[3])
        for row in rows
        if len(row) == 4 and row[0].isdecimal()
    ]


def minutes(limit: str) -> int | None:
    """Minutes of a time limit like "10:00", "00:10:00" or "1-02:00:00", rounded up; None for "UNLIMITED"."""
    found = _LIMIT.fullmatch(limit.strip())
    if found is None:
        return None
    days, hours, mins, seconds = (int(part or 0) for part in found.groups())
    return days * 1440 + hours * 60 + mins + (seconds > 0)


def members(job: str) -> list[str]:
    """Array members of a job id as Slurm shows it: "7_[0-2,5%2]" -> 7_0 7_1 7_2 7_5; a plain id is itself.

    What Slurm cut off ("7_[0,2,32...]") is left out.
    """
    pending = _MEMBERS.fullmatch(job)
    if pending is None:
        return [job]
    root, listed = pending.groups()
    found = []
    for span in filter(None, map(_SPAN.fullmatch, listed.split(","))):
        first, last, step = span.groups()
        found += [f"{root}_{index}" for index in range(int(first), int(last or first) + 1, int(step or 1))]
    return found
