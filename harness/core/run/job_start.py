"""One start of a Slurm job, and the claim that lets it alone run an allocation.

A requeued job keeps its id and counts its restarts. Processes of its earlier start may still be alive, and one
submission may have become two jobs, so the job id alone does not decide who may write.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from signal import SIGTERM

from harness.core.errors import STORAGE_EXITS
from harness.core.run.records import CellResult

_STARTED_AGAIN = "Slurm started job"


@dataclass(frozen=True, kw_only=True)
class JobStart:
    """A start of a job. `job` is Slurm's job id: "12", or "12_3" for a member of an array."""

    job: str
    restart: int = 0

    @staticmethod
    def of(environment: Mapping[str, str]) -> JobStart | None:
        """Return the start that a process with these SLURM_ variables belongs to; None outside a job."""
        job = environment.get("SLURM_JOB_ID", "")
        if not job:
            return None
        array, index = environment.get("SLURM_ARRAY_JOB_ID"), environment.get("SLURM_ARRAY_TASK_ID")
        if array and index:
            job = f"{array}_{index}"
        restart = environment.get("SLURM_RESTART_COUNT", "")
        return JobStart(job=job, restart=int(restart) if restart.isdecimal() else 0)


@dataclass(frozen=True, kw_only=True)
class Claim:
    """The file that a start writes to the run directory before anything else."""

    job: str
    restart: int
    order: str  # name of its work order; its journals and heartbeats have this name too
    host: str = ""
    time: float = 0.0  # seconds since the epoch

    def refusal(self, start: JobStart) -> str | None:
        """Return why another start may not run after this one; None if it is a later start of the same job."""
        if start.job != self.job:
            return f"job {self.job} has claimed the allocation: job {start.job} is a duplicate of it"
        if start.restart <= self.restart:
            return f"restart {self.restart} of job {self.job} has claimed the allocation already"
        return None


def started_again(start: JobStart) -> str:
    """Return the reason in the result that a later start of a job gives to the attempts that an earlier one left."""
    return f"{_STARTED_AGAIN} {start.job} again (restart {start.restart}) before the cell ended"


def was_cut_off(result: CellResult) -> bool:
    """Return whether something other than the code under test ended the attempt: its node, its job or the disk.

    A rank that crashed, or that the kernel killed for its memory, ended by itself, and its peers by SIGTERM of their
    parent. Ranks whose end no parent saw were on a lost node, unless the result names no trouble of a node (status
    "failed"): then they had not begun when another rank failed. When all were ended by SIGTERM, it was the job's.
    """
    if result.status == "completed":
        return False
    if not result.ranks:
        return result.reason.startswith(_STARTED_AGAIN)
    silent = [rank.exit_code for rank in result.ranks if rank.ended in ("missing", "killed")]
    failed = sum(rank.ended != "completed" for rank in result.ranks)
    if len(silent) == failed and all(code in (None, -SIGTERM) for code in silent):
        return True
    return any(code in STORAGE_EXITS or (code is None and result.status == "error") for code in silent)
