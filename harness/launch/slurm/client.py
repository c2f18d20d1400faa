"""Calls Slurm's commands, each with a time limit, and parses what they print. No answer means `unknown`, never success.

submitit runs sbatch; a job's outcome is what its agents write (decision 14).
"""

from __future__ import annotations

import os
import re
import shutil
import time
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from harness.core.errors import DiskFullError, InfrastructureError
from harness.infra.command import Answer, ask
from harness.matrix.cluster import overriding

TERMINAL = frozenset(
    ("BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED")
    + ("NODE_FAIL", "OUT_OF_MEMORY", "PREEMPTED", "REVOKED", "TIMEOUT")
)
_WAITING = frozenset(("PENDING", "REQUEUED", "REQUEUE_FED", "REQUEUE_HOLD", "RESV_DEL_HOLD", "SPECIAL_EXIT"))
_NO_NODES = "None assigned"  # sacct, of a job that never started
_MEMBERS = re.compile(r"(\d+)_\[([^\]%]*)(?:%\d+)?\]")
_SPAN = re.compile(r"(\d+)(?:-(\d+)(?::(\d+))?)?")
_LIMIT = re.compile(r"(?:(\d+)-)?(?:(\d+):)?(\d+):(\d+)")  # [days-][hours:]minutes:seconds
CALL_TIMEOUT_S = 20.0
SUBMIT_TIMEOUT_S = 300.0  # of sbatch, which retries while the controller is busy
ACCOUNTING_AGAIN_S = 300.0  # pause after sacct failed: while its service is down every call is slow
_MAY_BE_REQUEUED = frozenset({"BOOT_FAIL", "FAILED", "NODE_FAIL", "PREEMPTED"})
_UNUSABLE = "down,drain,fail,no_respond"
_NO_SUCH_JOB = "Invalid job id specified"  # squeue's message for a single job that the controller has forgotten
_WHOLE_LISTS = {"SLURM_BITSTR_LEN": "0"}  # else the list of an array's pending members is cut after 64 characters
_NAMES_AT_ONCE = 500  # of 64 characters, in one argument
_SUBMITTED = re.compile(r"\bjob (\d+)")
_START = re.compile(r" to start at (\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)")
_TIMED_OUT_FROM = 123  # exit codes of coreutils' timeout: 124 if it ended the command, 128 and above if a signal did
# Messages of sbatch when it could not reach the controller, or lost the controller's reply.
_AWAY = re.compile(
    "[Uu]nable to contact slurm controller|Socket timed out|Connection refused|Connection timed out"
    "|Slurm backup controller|Zero Bytes were transmitted|Communication (?:connection|shutdown) failure"
    "|Message (?:send|receive) failure|Transport endpoint is not connected|Broken pipe|temporarily unable to accept"
)


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
        """Return how the job ended, as a clause."""
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
    """Parse the output of `sacct -n -P -X -o JobID,State,ExitCode,NodeList,Timelimit`, e.g. "CANCELLED by 0"."""
    states: dict[str, JobState] = {}
    for line in text.splitlines():
        fields = line.split("|")
        # A plug-in or a warning of Slurm may print lines of its own.
        if len(fields) != 5 or not fields[1]:
            continue
        state, _, by = fields[1].partition(" by ")
        job_state = JobState(
            # Some states come with more words; the first one is the state.
            state=state.split()[0],
            exit_code=fields[2],
            nodes=fields[3] if fields[3] != _NO_NODES else "",
            source="sacct",
            limit_min=minutes(fields[4]),
            cancelled_by=by,
        )
        states |= dict.fromkeys(members(fields[0]), job_state)
    return states


def parse_squeue(text: str) -> dict[str, JobState]:
    """Parse the output of `squeue -h -t all -o "%i|%T|%N|%l"`."""
    states: dict[str, JobState] = {}
    for line in text.splitlines():
        fields = line.split("|")
        if len(fields) == 4:
            job_state = JobState(state=fields[1], nodes=fields[2], source="squeue", limit_min=minutes(fields[3]))
            states |= dict.fromkeys(members(fields[0]), job_state)
    return states


def parse_pending(text: str) -> dict[str, Pending]:
    """Parse the output of `squeue -h -t PENDING -o "%i|%S|%r"`."""
    pending: dict[str, Pending] = {}
    for line in text.splitlines():
        fields = line.split("|", 2)
        if len(fields) == 3:
            # squeue prints "N/A" while the backfill scheduler has not planned the job.
            job = Pending(reason=fields[2], start=fields[1] if fields[1][:1].isdecimal() else "")
            pending |= dict.fromkeys(members(fields[0]), job)
    return pending


def parse_named(text: str) -> list[NamedJob]:
    """Parse the output of `squeue -h -t all -o "%F|%V|%T|%j"`."""
    rows = (line.split("|", 3) for line in text.splitlines())
    return [
        NamedJob(number=row[0], submitted=row[1], state=row[2], name=row[3])
        for row in rows
        if len(row) == 4 and row[0].isdecimal()
    ]


def minutes(limit: str) -> int | None:
    """Return the minutes of a time limit like "10:00", "00:10:00" or "1-02:00:00", rounded up; None for "UNLIMITED"."""
    match = _LIMIT.fullmatch(limit.strip())
    if match is None:
        return None
    days, hours, mins, seconds = (int(part or 0) for part in match.groups())
    return days * 1440 + hours * 60 + mins + (seconds > 0)


def members(job: str) -> list[str]:
    """Return the array members of a job id as Slurm shows it: "7_[0-2,5%2]" -> 7_0 7_1 7_2 7_5; a plain id is itself.

    Indices that Slurm truncates ("7_[0,2,32...]") are left out.
    """
    pending = _MEMBERS.fullmatch(job)
    if pending is None:
        return [job]
    root, listed = pending.groups()
    ids = []
    for span in filter(None, map(_SPAN.fullmatch, listed.split(","))):
        first, last, step = span.groups()
        ids += [f"{root}_{index}" for index in range(int(first), int(last or first) + 1, int(step or 1))]
    return ids


@dataclass(frozen=True, kw_only=True)
class Answered:
    """How a command of Slurm ended."""

    code: int  # negative where it is unknown
    output: str
    error: str


def _by_submitit(command: Sequence[str]) -> Answered:
    from submitit.core.utils import FailedJobError
    from submitit.helpers import CommandFunction

    try:
        output = str(CommandFunction(list(command), verbose=False)())
    except FailedJobError as error:
        # Without a return code submitit could not read its output.
        return Answered(code=getattr(error.__cause__, "returncode", -1), output="", error=str(error))
    return Answered(code=0, output=output, error="")


class ControllerAwayError(InfrastructureError):
    """Slurm's controller could not be reached, or it is unknown whether it received the request."""


class SlurmClient:
    """Queries many jobs in one call: sacct where accounting answers, else squeue. Counts its calls."""

    def __init__(self) -> None:
        self.calls = 0
        self._accounting_from = 0.0  # when sacct may be called again, on the monotonic clock

    def states(self, jobs: Sequence[str], silent: Collection[str] = ()) -> dict[str, JobState]:
        """Return the state of every job ("12" or "12_3"); UNKNOWN for those that Slurm does not mention.

        `silent`: jobs without recent heartbeats. They count as running only if the controller says so: if accounting
        was down when a job ended, it shows RUNNING for ever.
        """
        states: dict[str, JobState] = {}
        answered = True
        if jobs and time.monotonic() >= self._accounting_from:
            text = self._call(
                ["sacct", "-n", "-P", "-X", "-o", "JobID,State,ExitCode,NodeList,Timelimit", "-j", _roots(jobs)]
            )
            if text is None:
                self._accounting_from = time.monotonic() + ACCOUNTING_AGAIN_S
            states = parse_sacct(text or "")
        # sacct lags behind, and shows the old end of a requeued job until it runs again; squeue knows the last minutes.
        unsure = [job for job in silent if job in states and not states[job].ended]
        doubtful = [job for job in jobs if job not in states or states[job].state in _MAY_BE_REQUEUED or job in unsure]
        if doubtful:
            text = self._call(["squeue", "-h", "-t", "all", "-o", "%i|%T|%N|%l", "-j", _roots(doubtful)])
            answered = text is not None
            queue = parse_squeue(text or "")
            if answered:
                # The controller has answered and does not know them: accounting's RUNNING is stale (see `silent`).
                states = {job: state for job, state in states.items() if job not in unsure}
            # squeue wins, except where both say that a job ended: then sacct knows its exit code.
            states |= {job: queue[job] for job in doubtful if job in queue and not (job in states and queue[job].ended)}
        return {job: states.get(job, JobState(answered=answered)) for job in jobs}

    def pending(self, jobs: Sequence[str]) -> dict[str, Pending]:
        """Return why jobs wait in the queue, by job; empty when Slurm does not answer."""
        if not jobs:
            return {}
        text = self._call(["squeue", "-h", "-t", "PENDING", "-o", "%i|%S|%r", "-j", _roots(jobs)])
        answers = parse_pending(text or "")
        return {job: answers[job] for job in jobs if job in answers}

    def named(self, names: Sequence[str]) -> list[NamedJob]:
        """Return the jobs of these names that the controller knows, in order of submission.

        ControllerAwayError when it does not answer.
        """
        jobs: list[NamedJob] = []
        for begin in range(0, len(names), _NAMES_AT_ONCE):
            some = ",".join(names[begin : begin + _NAMES_AT_ONCE])
            text = self._call(["squeue", "-h", "-t", "all", "-o", "%F|%V|%T|%j", f"--name={some}"])
            if text is None:
                raise ControllerAwayError("Slurm's controller does not answer squeue")
            jobs += parse_named(text)
        return sorted(jobs, key=lambda job: (job.submitted, int(job.number)))

    def accounted(self, name: str) -> str | None:
        """Return the number of a job of that name from accounting, which keeps jobs that the controller forgets.

        Else None.
        """
        text = self._call(["sacct", "-n", "-X", "-P", "-S", "now-30days", "-o", "JobID", f"--name={name}"])
        return text.split()[0].partition("_")[0] if text and text.split() else None

    def cancel(self, name: str, jobs: Sequence[str]) -> None:
        """Cancel the jobs that have this name: Slurm may have reused a number for the job of another user."""
        if jobs:
            self._call(["scancel", f"--name={name}", *jobs])

    def unusable(self, nodes: str) -> str:
        """Return the nodes of a list ("n[1-4]") that cannot run jobs now, in the form of --exclude.

        Empty when all can.
        """
        return ",".join((self._call(["sinfo", "-h", "-N", "-n", nodes, "-t", _UNUSABLE, "-o", "%N"]) or "").split())

    def nodes_of_hosts(self, nodes: str, hosts: Collection[str]) -> str:
        """Return the nodes of a list ("n[1-4]") that are these hosts, in the form of --exclude.

        Empty when that is unclear.

        A host may be known by its name in Slurm, or by the host name of exactly one node.
        """
        if not hosts:
            return ""
        rows = (self._call(["sinfo", "-h", "-N", "-n", nodes, "-o", "%N %n"]) or "").splitlines()
        host_of = {name: host for name, _, host in (row.partition(" ") for row in rows)}
        nodes_of = []
        for host in hosts:
            of_host = [name for name, of_node in host_of.items() if _short(of_node) == _short(host)]
            nodes_of += [host] if host in host_of else of_host if len(of_host) == 1 else []
        return ",".join(dict.fromkeys(nodes_of))

    def submit(self, job_file: Path) -> str:
        """Submit a job file; return the job's number.

        InfrastructureError when there is no Slurm here, or with sbatch's message when it refuses; ControllerAwayError
        when it is not known whether Slurm has the job.
        """
        if shutil.which("sbatch") is None or shutil.which("srun") is None:
            raise InfrastructureError(
                "sbatch and srun are not on PATH: run on a Slurm login node, with Slurm's module loaded"
            )
        self.calls += 1
        # coreutils' timeout, since submitit's call has no limit; in the foreground, so that Ctrl-C reaches sbatch.
        limit = ["timeout", "--foreground", f"{SUBMIT_TIMEOUT_S:g}"]
        done = _by_submitit([*limit, *_without_overriding(job_file), "sbatch", str(job_file)])
        if done.code != 0:
            # Ended by a signal or the time limit, or the message is not a refusal: Slurm may have the job.
            unclear = done.code < 0 or done.code > _TIMED_OUT_FROM or not done.error.strip() or _AWAY.search(done.error)
            reason = done.error.strip() or f"exit code {done.code}"
            if unclear:
                raise ControllerAwayError(f"unknown whether Slurm accepted the job; sbatch: {reason}")
            raise InfrastructureError(f"sbatch refused the job file: {reason}")
        submitted = _SUBMITTED.search(done.output)
        if submitted is None:
            raise ControllerAwayError(f"sbatch printed no job number: {done.output!r}")
        return submitted[1]

    def expected_start(self, job_file: Path) -> str | None:
        """Return when Slurm would start a job file, local time like 2027-01-31T12:00:00; None if unknown."""
        answer = self._ask([*_without_overriding(job_file), "sbatch", "--test-only", str(job_file)])
        start = _START.search(answer.stderr)
        return start[1] if start and answer.problem is None else None

    def partitions(self) -> Answer:
        """Return the partitions: name, generic resources and time limit, separated by |, one line per group of
        nodes.
        """
        return self._ask(["sinfo", "-h", "-o", "%R|%G|%l"])

    def nodes(self) -> Answer:
        """Return the groups of nodes: partition (* marks the default), generic resources, nodes, cores and time
        limit.
        """
        return self._ask(["sinfo", "-h", "-o", "%P|%G|%D|%c|%l"])

    def configuration(self) -> Answer:
        """Return Slurm's configuration, one NAME = VALUE per line."""
        return self._ask(["scontrol", "show", "config"])

    def accounts(self, user: str) -> Answer:
        """Return the accounts that a user may charge, one per line."""
        return self._ask(["sacctmgr", "-n", "-P", "show", "assoc", f"user={user}", "format=Account"])

    def accounting(self) -> Answer:
        """Return whether accounting answers."""
        return self._ask(["sacct", "-n", "-X", "-P", "-o", "JobID"])

    def version(self, command: str) -> Answer:
        """Return the version of sbatch or srun."""
        return self._ask([command, "--version"])

    def srun_help(self) -> Answer:
        """Return the options of srun, including those of its plugins."""
        return self._ask(["srun", "--help"])

    def _call(self, argv: list[str]) -> str | None:
        """Return standard output, or None when the command fails or exceeds the time limit.

        The error that Slurm knows none of the jobs counts as an empty output.
        """
        answer = self._ask(argv)
        return answer.text if answer.problem is None or _NO_SUCH_JOB in answer.stderr else None

    def _ask(self, argv: list[str]) -> Answer:
        self.calls += 1
        return ask(argv, {**os.environ, **_WHOLE_LISTS}, CALL_TIMEOUT_S)


def _without_overriding(job_file: Path) -> list[str]:
    """Return how to run sbatch without the variables of this shell that would count more than the job file."""
    names = overriding(os.environ, job_file.read_text(encoding="utf-8"))
    return ["env", *(word for name in names for word in ("-u", name))] if names else []


def _short(host: str) -> str:
    return host.partition(".")[0]


def _roots(jobs: Iterable[str]) -> str:
    """Return the job numbers without array indices, each once: Slurm answers for all members of an array."""
    return ",".join(dict.fromkeys(job.partition("_")[0] for job in jobs))
