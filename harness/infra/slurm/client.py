"""Calls Slurm's commands, each with a time limit. No answer means `unknown`, never success.

What runs sbatch is a profile's `launcher`; a job's outcome is what its agents write (decision 14).
"""

from __future__ import annotations

import os
import re
import shutil
import time
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path

from harness.core.errors import InfrastructureError
from harness.infra.command import Answer, ask
from harness.infra.slurm.job_states import (
    JobState,
    NamedJob,
    Pending,
    parse_named,
    parse_pending,
    parse_sacct,
    parse_squeue,
)
from harness.infra.slurm.sbatch import RunCommand, by_submitit
from harness.plan.jobs.slurm_flags import overriding

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


class ControllerAwayError(InfrastructureError):
    """Slurm's controller could not be reached, or it is unknown whether it received the request."""


class SlurmClient:
    """Queries many jobs in one call: sacct where accounting answers, else squeue. Counts its calls."""

    def __init__(self, sbatch: RunCommand = by_submitit) -> None:
        self.calls = 0
        self._sbatch = sbatch
        self._accounting_from = 0.0  # when sacct may be called again, on the monotonic clock

    def states(self, jobs: Sequence[str], silent: Collection[str] = ()) -> dict[str, JobState]:
        """State of every job ("12" or "12_3"); UNKNOWN for those that Slurm does not mention.

        `silent`: jobs without recent heartbeats. They count as running only if the controller says so: if accounting
        was down when a job ended, it shows RUNNING for ever.
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
        """Why jobs wait in the queue, by job; empty when Slurm does not answer."""
        if not jobs:
            return {}
        text = self._call(["squeue", "-h", "-t", "PENDING", "-o", "%i|%S|%r", "-j", _roots(jobs)])
        found = parse_pending(text or "")
        return {job: found[job] for job in jobs if job in found}

    def named(self, names: Sequence[str]) -> list[NamedJob]:
        """The jobs of these names that the controller knows, in order of submission.

        ControllerAwayError when it does not answer.
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
        """Number of a job of that name from accounting, which keeps jobs that the controller forgets; else None."""
        text = self._call(["sacct", "-n", "-X", "-P", "-S", "now-30days", "-o", "JobID", f"--name={name}"])
        return text.split()[0].partition("_")[0] if text and text.split() else None

    def cancel(self, name: str, jobs: Sequence[str]) -> None:
        """Cancel the jobs that have this name: Slurm may have reused a number for the job of another user."""
        if jobs:
            self._call(["scancel", f"--name={name}", *jobs])

    def unusable(self, nodes: str) -> str:
        """The nodes of a list ("n[1-4]") that cannot run jobs now, in the form of --exclude; empty when all can."""
        return ",".join((self._call(["sinfo", "-h", "-N", "-n", nodes, "-t", _UNUSABLE, "-o", "%N"]) or "").split())

    def nodes_of_hosts(self, nodes: str, hosts: Collection[str]) -> str:
        """The nodes of a list ("n[1-4]") that are these hosts, in the form of --exclude; empty when that is unclear.

        A host may be known by its name in Slurm, or by the host name of exactly one node.
        """
        if not hosts:
            return ""
        rows = (self._call(["sinfo", "-h", "-N", "-n", nodes, "-o", "%N %n"]) or "").splitlines()
        known = {name: host for name, _, host in (row.partition(" ") for row in rows)}
        found = []
        for host in hosts:
            of_host = [name for name, other in known.items() if _short(other) == _short(host)]
            found += [host] if host in known else of_host if len(of_host) == 1 else []
        return ",".join(dict.fromkeys(found))

    def submit(self, job_file: Path) -> str:
        """Submit a job file; returns the job's number.

        InfrastructureError when there is no Slurm here, or with sbatch's message when it refuses; ControllerAwayError
        when it is not known whether Slurm has the job.
        """
        if shutil.which("sbatch") is None or shutil.which("srun") is None:
            raise InfrastructureError(
                "sbatch and srun are not on PATH: run on a Slurm login node, with Slurm's module loaded"
            )
        self.calls += 1
        limit = ["timeout", "--foreground", f"{SUBMIT_TIMEOUT_S:g}"]
        done = self._sbatch([*limit, *_without_overriding(job_file), "sbatch", str(job_file)])
        if done.code != 0:
            # Ended by a signal or the time limit, or the message is not a refusal: Slurm may have the job.
            unclear = done.code < 0 or done.code > _TIMED_OUT_FROM or not done.error.strip() or _AWAY.search(done.error)
            reason = done.error.strip() or f"exit code {done.code}"
            if unclear:
                raise ControllerAwayError(f"unknown whether Slurm accepted the job; sbatch: {reason}")
            raise InfrastructureError(f"sbatch refused the job file: {reason}")
        found = _SUBMITTED.search(done.output)
        if found is None:
            raise ControllerAwayError(f"sbatch printed no job number: {done.output!r}")
        return found[1]

    def expected_start(self, job_file: Path) -> str | None:
        """When Slurm would start a job file, local time like 2027-01-31T12:00:00; None if unknown."""
        answer = self._ask([*_without_overriding(job_file), "sbatch", "--test-only", str(job_file)])
        found = _START.search(answer.stderr)
        return found[1] if found and answer.problem is None else None

    def partitions(self) -> Answer:
        """Partitions: name, generic resources and time limit, separated by |, one line per group of nodes."""
        return self._ask(["sinfo", "-h", "-o", "%R|%G|%l"])

    def nodes(self) -> Answer:
        """Groups of nodes: partition (* marks the default), generic resources, nodes, cores and time limit."""
        return self._ask(["sinfo", "-h", "-o", "%P|%G|%D|%c|%l"])

    def configuration(self) -> Answer:
        """Slurm's configuration, one NAME = VALUE per line."""
        return self._ask(["scontrol", "show", "config"])

    def accounts(self, user: str) -> Answer:
        """The accounts that a user may charge, one per line."""
        return self._ask(["sacctmgr", "-n", "-P", "show", "assoc", f"user={user}", "format=Account"])

    def accounting(self) -> Answer:
        """Whether accounting answers."""
        return self._ask(["sacct", "-n", "-X", "-P", "-o", "JobID"])

    def version(self, command: str) -> Answer:
        """The version of sbatch or srun."""
        return self._ask([command, "--version"])

    def srun_help(self) -> Answer:
        """The options of srun, including those of its plugins."""
        return self._ask(["srun", "--help"])

    def _call(self, argv: list[str]) -> str | None:
        """Standard output, or None when the command fails or exceeds the time limit.

        The error that Slurm knows none of the jobs counts as an empty output.
        """
        answer = self._ask(argv)
        return answer.text if answer.problem is None or _NO_SUCH_JOB in answer.stderr else None

    def _ask(self, argv: list[str]) -> Answer:
        self.calls += 1
        return ask(argv, {**os.environ, **_WHOLE_LISTS}, CALL_TIMEOUT_S)


def _without_overriding(job_file: Path) -> list[str]:
    """How to run sbatch without the variables of this shell that would count more than the job file."""
    names = overriding(os.environ, job_file.read_text(encoding="utf-8"))
    return ["env", *(word for name in names for word in ("-u", name))] if names else []


def _short(host: str) -> str:
    return host.partition(".")[0]


def _roots(jobs: Iterable[str]) -> str:
    """Job numbers without array indices, each once: Slurm answers for all members of an array."""
    return ",".join(dict.fromkeys(job.partition("_")[0] for job in jobs))
