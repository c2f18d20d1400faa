"""Parses Slurm's output about jobs. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from harness.core.errors import DiskFullError

TERMINAL = frozenset(
    ("BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED")
    + ("NODE_FAIL", "OUT_OF_MEMORY", "PREEMPTED", "REVOKED", "TIMEOUT")
)
_WAITING = frozenset(("PENDING", "REQUEUED", "REQUEUE_FED", "REQUEUE_HOLD", "RESV_DEL_HOLD", "SPECIAL_EXIT"))
_NO_NODES = "None assigned"  # sacct, of a job that never started
_MEMBERS = re.compile(r"(\d+)_\[([^\]%]*)(?:%\d+)?\]")
_SPAN = re.compile(r"(\d+)(?:-(\d+)(?::(\d+))?)?")
_LIMIT = re.compile(r"(?:(\d+)-)?(?:(\d+):)?(\d+):(\d+)")  # [days-][hours:]minutes:seconds


@dataclass(frozen=True, kw_only=True)
class JobState:
    """State of one job or array member, as Slurm names it; "UNKNOWN" when Slurm does not list it."""

    state: str = "UNKNOWN"
    answered: bool = True  # False: Slurm did not answer, so UNKNOWN does not mean that it lost the job
    exit_code: str = ""  # "3:0": exit status, signal
    nodes: str = ""
    source: Literal["", "sacct", "squeue"] = ""
    limit_min: int | None = None  # the job's time limit, minutes
    cancelled_by: str = ""  # uid; only accounting knows

    @property
    def ended(self) -> bool:
        """Whether the job is over for Slurm. Preempted and failed jobs that are requeued show as PENDING."""
        return self.state in TERMINAL

    @property
    def waits(self) -> bool:
        """Whether the job has no nodes yet, or again; a held one needs the user."""
        return self.state in _WAITING

    @property
    def disk_full(self) -> bool:
        """Whether an agent of the job found the run directory's disk full; only accounting knows."""
        return self.exit_code == f"{DiskFullError.process_exit_code}:0"

    @property
    def has_cause(self) -> bool:
        """Whether `ending` says more than the state alone."""
        return self.state in ("TIMEOUT", "CANCELLED")

    def ending(self, job: str) -> str:
        """How the job ended, as a clause."""
        if self.state == "TIMEOUT":
            limit = f" of {self.limit_min} min" if self.limit_min is not None else ""
            return f"job {job} hit its time limit{limit}"
        if self.state == "CANCELLED":
            return f"job {job} was cancelled" + (f" by uid {self.cancelled_by}" if self.cancelled_by else "")
        return f"job {job} ended as {self.state}"


@dataclass(frozen=True, kw_only=True)
class NamedJob:
    """A job, or the members of an array that share one state, found by job name."""

    number: str  # of the array, not of a member
    name: str
    state: str
    submitted: str = ""  # as Slurm shows it, local time

    @property
    def ended(self) -> bool:
        return self.state in TERMINAL

    @property
    def runs(self) -> bool:
        """Whether it holds nodes with processes: Slurm only cleans up after a COMPLETING one."""
        return not self.ended and self.state not in (*_WAITING, "COMPLETING")


@dataclass(frozen=True, kw_only=True)
class Pending:
    """Why a job waits in the queue (Slurm's reason), and when Slurm expects to start it."""

    reason: str
    start: str = ""  # local time like 2027-01-31T12:00:00; empty when unknown


def parse_sacct(text: str) -> dict[str, JobState]:
    """Parses the output of `sacct -n -P -X -o JobID,State,ExitCode,NodeList,Timelimit`, e.g. "CANCELLED by 0"."""
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
    """Parses the output of `squeue -h -t all -o "%i|%T|%N|%l"`."""
    found: dict[str, JobState] = {}
    for line in text.splitlines():
        fields = line.split("|")
        if len(fields) == 4:
            one = JobState(state=fields[1], nodes=fields[2], source="squeue", limit_min=minutes(fields[3]))
            found |= dict.fromkeys(members(fields[0]), one)
    return found


def parse_pending(text: str) -> dict[str, Pending]:
    """Parses the output of `squeue -h -t PENDING -o "%i|%S|%r"`."""
    found: dict[str, Pending] = {}
    for line in text.splitlines():
        fields = line.split("|", 2)
        if len(fields) == 3:
            one = Pending(reason=fields[2], start=fields[1] if fields[1][:1].isdecimal() else "")
            found |= dict.fromkeys(members(fields[0]), one)
    return found


def parse_named(text: str) -> list[NamedJob]:
    """Parses the output of `squeue -h -t all -o "%F|%V|%T|%j"`."""
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

    Indices that Slurm truncates ("7_[0,2,32...]") are left out.
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
