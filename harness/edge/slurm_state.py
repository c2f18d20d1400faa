"""What Slurm says of jobs: one call for all of them. Silence is `unknown`, never success."""

from __future__ import annotations

import os
import re
import subprocess
import time
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from harness.words.errors import DiskFullError

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


@dataclass(frozen=True, kw_only=True)
class JobState:
    """State of one job or array member, as Slurm names it; "UNKNOWN" when Slurm says nothing of it."""

    state: str = "UNKNOWN"
    answered: bool = True  # false: Slurm could not be asked, so UNKNOWN does not mean that it lost the job
    exit_code: str = ""  # "3:0": exit status, signal
    nodes: str = ""
    restarts: int = 0
    source: str = ""  # sacct | squeue

    @property
    def ended(self) -> bool:
        """Slurm is sure that the job runs no more. Preempted and failed jobs that are requeued show as PENDING."""
        return self.state in TERMINAL

    @property
    def disk_full(self) -> bool:
        """An agent of the job had no room in the run directory; only accounting knows."""
        return self.exit_code == f"{DiskFullError.process_exit_code}:0"


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
            text = self._call(["sacct", "-n", "-P", "-X", "-o", "JobID,State,ExitCode,NodeList", "-j", _roots(jobs)])
            if text is None:
                self._accounting_from = time.monotonic() + ACCOUNTING_AGAIN_S
            found = parse_sacct(text or "")
        # sacct lags behind, and shows the old end of a requeued job until it runs again; squeue knows the last minutes.
        unsure = [job for job in silent if job in found and not found[job].ended]
        doubtful = [job for job in jobs if job not in found or found[job].state in _MAY_BE_REQUEUED or job in unsure]
        if doubtful:
            text = self._call(["squeue", "-h", "-t", "all", "-o", "%i|%T|%N", "-j", _roots(doubtful)])
            answered = text is not None
            queue = parse_squeue(text or "")
            if answered:
                found = {job: state for job, state in found.items() if job not in unsure}
            found |= {job: queue[job] for job in doubtful if job in queue and not (job in found and queue[job].ended)}
        return {job: found.get(job, JobState(answered=answered)) for job in jobs}

    def cancel(self, jobs: Sequence[str]) -> None:
        if jobs:
            self._call(["scancel", *jobs])

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
    """`sacct -n -P -X -o JobID,State,ExitCode,NodeList`. "CANCELLED by 0" is CANCELLED."""
    found = {}
    for line in text.splitlines():
        fields = line.split("|")
        if len(fields) != 4 or not fields[1]:
            continue
        state = fields[1].split()[0]
        nodes = fields[3] if fields[3] != _NO_NODES else ""
        for job in members(fields[0]):
            found[job] = JobState(state=state, exit_code=fields[2], nodes=nodes, source="sacct")
    return found


def parse_squeue(text: str) -> dict[str, JobState]:
    """`squeue -h -t all -o "%i|%T|%N"`."""
    found = {}
    for line in text.splitlines():
        fields = line.split("|")
        if len(fields) == 3:
            for job in members(fields[0]):
                found[job] = JobState(state=fields[1], nodes=fields[2], source="squeue")
    return found


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
