"""The one cause of a cell that did not complete: its failure class, and the rank that failed first."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from harness.core.run.records import CellResult
from harness.judge.evidence.endings import SIGTERM, Ending, signal_of
from harness.judge.failures import patterns as table
from harness.judge.failures.blame import blame_of
from harness.judge.failures.classification import FailureClass, FailureEvidence, JobEnding, LogTail, classify
from harness.judge.failures.hangs import stall_of
from harness.judge.failures.pattern_row import Domain, Role
from harness.judge.locations import numbered, where_of

# Classes that state no more than how the rank ended; the message of any other names the class too.
_ENDINGS = (table.NATIVE_CRASH, table.KILLED, table.HANG, table.FROZEN, table.STALLED, table.DEADLINE, table.UNKNOWN)
_BY_ENDING = frozenset(pattern.name for pattern in _ENDINGS)


@dataclass(frozen=True, kw_only=True)
class Cause:
    """Why a cell did not complete: the class of the failure, and the first rank that failed."""

    ending: Ending
    others: tuple[int, ...]  # further ranks that did not complete
    failure_class: FailureClass
    message: str

    @property
    def domain(self) -> Domain:
        return self.failure_class.domain

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


def cause_of(
    endings: list[Ending],
    result: CellResult | None,
    job: JobEnding | None = None,
    logs: Mapping[int, LogTail] | None = None,
) -> Cause | None:
    """The cause of a failure, and where it began; None when every rank completed.

    The classifier decides both (classification.py), so that the outcome of a cell cannot contradict its failure class.
    `job`: how the scheduler's job ended, where known. `logs`: ends of the logs of ranks, by rank.
    """
    failed = [ending for ending in endings if ending.ended != "completed"]
    if not failed:
        return None
    job = job or JobEnding()
    known = classify(
        FailureEvidence(
            endings=tuple(endings),
            logs=logs or {},
            scheduler_state=job.state,
            scheduler_words=job.words,
            job_log=job.log,
            first_failed=result.first_failure_rank if result else None,
            given_up=result is not None and result.status == "error",
        )
    )
    first = _first(failed, known, result)
    others = tuple(ending.rank for ending in failed if ending.rank != first.rank)
    message = f"{_ended(first, endings)}{_reason(first, known, job.state)}"
    return Cause(ending=first, others=others, failure_class=known, message=message)


def _first(failed: list[Ending], known: FailureClass, result: CellResult | None) -> Ending:
    """The rank of the class; but before a rank that lost its peer, one that vanished without a trace.

    Where the class is of no rank, such as a state of the job: a rank that crashed or was killed from outside (not by
    SIGTERM, with which the parent ends the remaining ranks), else the one with the least progress.
    """
    vanished = [ending for ending in failed if ending.ended in ("killed", "missing") and ending.exit_code is None]
    if vanished and known.role == Role.CASCADE:
        return min(vanished, key=lambda ending: (ending.order, ending.rank))
    named = [ending for ending in failed if ending.rank == known.rank]
    if named:
        return named[0]
    died = [ending for ending in failed if ending.ended in ("crashed", "killed")]
    died = [ending for ending in died if ending.exit_code and signal_of(ending.exit_code) != SIGTERM]
    if died:
        named = [ending for ending in died if result and ending.rank == result.first_failure_rank]
        return (named or died)[0]
    silent = [ending for ending in failed if ending.ended != "raised"]
    return min(silent or failed, key=lambda ending: (ending.ended != "deadline", ending.order, ending.rank))


def _ended(first: Ending, endings: list[Ending]) -> str:
    """How the first rank that failed ended."""
    who = f"rank {first.rank} ({first.place})"
    stall = stall_of(endings) if first.ended == "deadline" else None
    if stall is not None:
        return stall.text
    if first.ended == "raised":
        if first.failure is None:
            return f"{who} raised in the {first.at}: an exception"
        blame = blame_of(first.failure, first.progress)
        says = {table.CONFIGURATION: first.failure.refused, table.ABSENT_NAME: first.failure.absent}.get(blame.pattern)
        words = [*([says] if says and says != first.failure.message else []), first.failure.type, first.failure.message]
        raised = f"{who} raised in the {first.at}: {': '.join(words)}"
        raised += f", at {blame.frame}" if blame.frame else ""
        if blame.domain == Domain.HARNESS:
            return f"{blame.pattern.title}, please report it with the log of rank {first.rank}: {raised}"
        if blame.pattern is table.OPEN_FILES:
            return f"{raised}; {blame.pattern.advice}"
        return raised
    if first.ended == "crashed":
        signal = signal_of(first.exit_code or 0)
        how = f"died of signal {signal}" if signal else f"exited with code {first.exit_code}"
        return f"{who} {how} in the {first.at}"
    if first.ended == "missing":
        return f"{who} left no record"
    if first.exit_code is None:
        return f"{who} was terminated in the {first.at}"
    return f"{who} was killed from outside (exit code {first.exit_code}) in the {first.at}"


def _reason(first: Ending, known: FailureClass, state: str | None) -> str:
    """What the ending of the rank does not say: how the scheduler ended the job, or what a log shows."""
    silent = first.ended in ("killed", "missing")
    row = next((row for row in table.PATTERNS if state and row.in_state(state)), None)
    if row is not None and (silent or known.rank is None):
        return f": {row.title} (job state {state})"
    if first.ended != "raised" and known.rank in (None, first.rank) and known.name not in _BY_ENDING:
        return f": {known.title}"
    return "; cause unknown" if first.ended == "killed" and first.exit_code is None else ""
