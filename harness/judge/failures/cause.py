"""The one cause of a cell that did not complete: the rank that failed first, and who is to blame."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from harness.core.errors import STORAGE_EXITS
from harness.core.run.records import CellResult
from harness.judge.evidence.endings import SIGTERM, TRAINED, Ending, signal_of
from harness.judge.failures import patterns as table
from harness.judge.failures.blame import Blame, blame_of
from harness.judge.failures.hangs import Stall, stall_of
from harness.judge.failures.pattern_row import Domain, Role
from harness.judge.locations import numbered, where_of


@dataclass(frozen=True, kw_only=True)
class Cause:
    """Why a cell did not complete: the first rank that failed."""

    ending: Ending
    others: tuple[int, ...]  # further ranks that did not complete
    domain: Domain
    message: str

    @property
    def blames_code(self) -> bool:
        """False: nothing can be concluded about the code under test."""
        return self.domain == Domain.CODE

    @property
    def others_text(self) -> str:
        """Empty when every other rank completed."""
        return f"; {numbered('rank', self.others)} did not complete either" if self.others else ""

    @property
    def where(self) -> dict[str, Any]:
        """The place of the first failure, as `where` of a finding."""
        ending, progress = self.ending, self.ending.progress
        return where_of(
            ending.place, rank=ending.rank, leg=progress.leg, step=progress.step, micro_batch=progress.micro_batch
        )


def cause_of(endings: list[Ending], result: CellResult | None, job_state: str | None = None) -> Cause | None:
    """The first failing rank and what is at fault; None when every rank completed.

    An exception is judged by its kind and frames (blame.py), a deadline by the stacks (hangs.py). A process that
    crashed once the legs had begun blames the code; a rank that was killed from outside or left no record does not.
    `job_state`: state of the scheduler's job, where known.
    """
    failed = [ending for ending in endings if ending.ended != "completed"]
    if not failed:
        return None
    first, stall = _first(failed, result), None
    if first.ended == "deadline":
        stall = stall_of(endings)
        first = next(ending for ending in failed if stall and ending.rank == stall.rank)
    blame = blame_of(first.failure, first.progress) if first.ended == "raised" and first.failure else None
    domain = _domain(first, blame, stall)
    if result is not None and result.status == "error" and domain == Domain.CODE:
        domain = Domain.INFRASTRUCTURE
    others = tuple(ending.rank for ending in failed if ending.rank != first.rank)
    return Cause(ending=first, others=others, domain=domain, message=_message(first, blame, stall, job_state))


def _domain(first: Ending, blame: Blame | None, stall: Stall | None) -> Domain:
    if blame is not None:
        return blame.domain
    if stall is not None:
        return stall.pattern.domain
    in_legs = first.progress.leg in ("metadata", *TRAINED)
    by_itself = first.ended == "crashed" and first.exit_code not in STORAGE_EXITS
    return Domain.CODE if in_legs and by_itself else Domain.INFRASTRUCTURE


def _first(failed: list[Ending], result: CellResult | None) -> Ending:
    """The rank whose failure the others follow from.

    The earliest exception that is not about a lost peer; else a rank that crashed or was killed from outside (not by
    SIGTERM, with which the parent ends the remaining ranks); else, at a deadline, the rank with the least progress.
    """
    died = [ending for ending in failed if ending.ended == "crashed"]
    died += [ending for ending in failed if ending.ended == "killed" and signal_of(ending.exit_code or 0) != SIGTERM]
    died = [ending for ending in died if ending.exit_code]
    raised = [ending for ending in failed if ending.ended == "raised"]
    own = [ending for ending in raised if not _follows(ending)]
    if died and not own:
        named = [ending for ending in died if result and ending.rank == result.first_failure_rank]
        return (named or died)[0]
    if own:
        return min(own, key=lambda ending: (ending.failure.time if ending.failure else math.inf, ending.rank))
    silent = [ending for ending in failed if ending.ended in ("killed", "missing", "deadline")]
    return min(silent or raised, key=lambda ending: (ending.ended != "deadline", ending.order, ending.rank))


def _follows(ending: Ending) -> bool:
    """Whether the exception only reports that another rank left or never arrived."""
    return ending.failure is not None and blame_of(ending.failure, ending.progress).pattern.role == Role.CASCADE


def _message(first: Ending, blame: Blame | None, stall: Stall | None, job_state: str | None) -> str:
    who = f"rank {first.rank} ({first.place})"
    if stall is not None:
        return stall.text
    if first.ended == "raised":
        detail = f"{first.failure.type}: {first.failure.message}" if first.failure else "an exception"
        raised = f"{who} raised in the {first.at}: {detail}"
        if blame is not None and blame.domain == Domain.HARNESS:
            return (
                f"{blame.pattern.title}, please report it with the log of rank {first.rank}: {raised}, at {blame.frame}"
            )
        return raised
    if first.ended == "crashed":
        signal = signal_of(first.exit_code or 0)
        how = f"died of signal {signal}" if signal else f"exited with code {first.exit_code}"
        return f"{who} {how} in the {first.at}"
    if first.ended == "missing":
        return f"{who} left no record{_job(job_state)}"
    if first.exit_code is None:
        return f"{who} was terminated in the {first.at}{_job(job_state) or '; cause unknown'}"
    return f"{who} was killed from outside (exit code {first.exit_code}) in the {first.at}{_job(job_state)}"


def _job(state: str | None) -> str:
    """The scheduler's explanation of how the job ended; empty if it has none."""
    row = next((row for row in table.PATTERNS if state and row.in_state(state)), None)
    return f": {row.title} (job state {state})" if row else ""
