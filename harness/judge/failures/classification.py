"""Classifies a failure by its evidence: a root comes before a cascade, and text alone never allows a retry."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

from harness.core.errors import STORAGE_EXITS
from harness.judge.evidence.endings import SIGTERM, TRAINED, Ending, signal_of
from harness.judge.failures import patterns as table
from harness.judge.failures.blame import blame_of
from harness.judge.failures.hangs import stall_of
from harness.judge.failures.pattern_row import Domain, Pattern, Retry, Role
from harness.judge.locations import numbered

SIGABRT = 6
_QUOTE_LENGTH = 300

# Where a candidate comes from, most certain first. The scheduler's state describes the whole job, which runs many cells
# and ends after them, so a rank that raised or crashed by itself takes precedence.
EXCEPTION, CRASH_LOG, CRASH, SCHEDULER, LOG, KILLED, HANG, DEADLINE = range(8)


@dataclass(frozen=True, kw_only=True)
class LogTail:
    """The end of a rank's log. `written` is when it was last written, in seconds since the epoch, where known."""

    text: str
    written: float = math.inf


@dataclass(frozen=True, kw_only=True)
class JobEnding:
    """How the scheduler's job of a cell ended. The job runs many cells."""

    state: str | None = None  # as sacct and squeue name it; None: not known
    words: str = ""  # how it ended, e.g. "job 12 hit its time limit of 10 min"; empty where not known
    log: str = ""  # the end of its output, with messages of slurmstepd and srun
    path: str = ""  # of that output, relative to the run directory


@dataclass(frozen=True, kw_only=True)
class FailureEvidence:
    """What is known about one attempt of a cell that failed.

    `scheduler_state` is the job's, as sacct and squeue name it; None where there is no scheduler or it does not know.
    `scheduler_words` is how the job ended, in a sentence, where that is known. `job_log` is the end of the job's own
    output, where slurmstepd and srun write.
    """

    endings: tuple[Ending, ...]
    logs: Mapping[int, LogTail] = field(default_factory=dict)  # by rank
    scheduler_state: str | None = None
    scheduler_words: str = ""
    job_log: str = ""
    first_failed: int | None = None  # the rank that failed first: clocks of nodes differ, so it precedes their times
    given_up: bool = False  # the agent reports that it could not run the attempt to its end


@dataclass(frozen=True, kw_only=True)
class FailureClass:
    name: str
    title: str
    domain: Domain
    role: Role
    retry: Retry  # OTHER_NODES only on more evidence than text
    advice: str
    rank: int | None  # the source of the evidence; None if it is the job
    evidence: str  # the text or state by which the class was recognised


@dataclass(frozen=True, kw_only=True)
class _Candidate:
    pattern: Pattern
    source: int
    evidence: str
    domain: Domain | None = None  # if frames or the leg decide; None: the row's
    rank: int | None = None
    time: float = math.inf

    @property
    def blamed(self) -> Domain:
        return self.domain or self.pattern.domain


def classify(evidence: FailureEvidence) -> FailureClass:
    """The class of the first root cause; if there is none, of the first cascade; else unknown.

    Exceptions are ordered by time, but the rank that is known to have failed first comes first. NCCL and gloo
    time-outs and lost peers are cascades. NaN and Inf found anywhere take precedence over any class that allows a
    retry, but then no component is named as at fault: a failing machine can compute anything.
    """

    def certainty(item: _Candidate) -> tuple[int, bool, float, int]:
        by_code = item.source == LOG and item.pattern.domain == Domain.CODE
        later = item.rank is None or item.rank != evidence.first_failed
        return CRASH_LOG if by_code else item.source, later, item.time, -1 if item.rank is None else item.rank

    candidates = list(_candidates(evidence))
    roots = [item for item in candidates if item.pattern.role == Role.ROOT]
    # Ranks that wait for each other run into the job's limit or its cancellation: both follow from the hang.
    if any(item.pattern is table.HANG for item in roots):
        roots = [item for item in roots if item.pattern not in (table.TIME_LIMIT, table.CANCELLED)]
    chosen = min(roots or candidates, key=certainty, default=None)
    numeric = [item for item in roots if item.pattern is table.NON_FINITE]
    if numeric and chosen is not None and chosen.pattern.retry_advice == Retry.OTHER_NODES:
        chosen = replace(min(numeric, key=certainty), domain=Domain.UNKNOWN)
    if chosen is None:
        chosen = _Candidate(pattern=table.UNKNOWN, source=DEADLINE, evidence=_silence(evidence))
    pattern = chosen.pattern
    return FailureClass(
        name=pattern.name,
        title=pattern.title,
        domain=_domain(chosen, roots, evidence),
        role=pattern.role,
        retry=_outlook(chosen, evidence),
        advice=pattern.advice,
        rank=chosen.rank,
        evidence=chosen.evidence[:_QUOTE_LENGTH],
    )


def _domain(chosen: _Candidate, roots: list[_Candidate], evidence: FailureEvidence) -> Domain:
    """The component at fault. Neither a log line alone nor an attempt that its agent gave up proves it is the code."""
    if chosen.blamed != Domain.CODE:
        return chosen.blamed
    if evidence.given_up:
        return Domain.INFRASTRUCTURE
    proven = any(item.source != LOG and item.blamed == Domain.CODE for item in roots)
    return Domain.CODE if proven else Domain.UNKNOWN


def _outlook(chosen: _Candidate, evidence: FailureEvidence) -> Retry:
    """OTHER_NODES only for infrastructure, proven by more than a log line: a state, an exception or a lost rank."""
    pattern = chosen.pattern
    if pattern.retry_advice != Retry.OTHER_NODES:
        return pattern.retry_advice
    gone = any(ending.ended in ("killed", "missing") for ending in evidence.endings)
    proven = chosen.source in (EXCEPTION, SCHEDULER) or pattern is table.FROZEN or gone
    return Retry.OTHER_NODES if pattern.domain == Domain.INFRASTRUCTURE and proven else Retry.UNKNOWN


def _candidates(evidence: FailureEvidence) -> Iterator[_Candidate]:
    for pattern in table.PATTERNS:
        if evidence.scheduler_state and pattern.in_state(evidence.scheduler_state):
            found = evidence.scheduler_words or f"job state {evidence.scheduler_state}"
            yield _Candidate(pattern=pattern, source=SCHEDULER, evidence=found)
    for ending in evidence.endings:
        log = evidence.logs.get(ending.rank, LogTail(text=""))
        if ending.failure is not None and ending.ended == "raised":
            yield from _of_an_exception(ending, log)
        elif ending.ended != "completed":
            yield from _of_a_silent_rank(ending, log)
    # A rank that raised recorded why it ended; the job's output counts only for ranks that could not.
    if any(ending.ended in ("killed", "missing", "crashed", "deadline") for ending in evidence.endings):
        for pattern, line in patterns_of_log(evidence.job_log):
            yield _Candidate(pattern=pattern, source=LOG, evidence=line)
    stall = stall_of(evidence.endings)
    if stall is not None:
        source = DEADLINE if stall.pattern is table.DEADLINE else HANG
        yield _Candidate(pattern=stall.pattern, source=source, evidence=stall.text, rank=stall.rank)


def _of_an_exception(ending: Ending, log: LogTail) -> Iterator[_Candidate]:
    """Candidates of a rank that raised: the exception and, if that is only a consequence, the rank's log."""
    failure, rank = ending.failure, ending.rank
    assert failure is not None
    pattern, domain, frame = blame_of(failure, ending.progress)
    text = f"{failure.type}: {failure.message}{f', at {frame}' if frame else ''}"
    yield _Candidate(pattern=pattern, source=EXCEPTION, evidence=text, domain=domain, rank=rank, time=failure.time)
    if pattern.role == Role.CASCADE:
        for found, line in patterns_of_log(log.text):
            yield _Candidate(pattern=found, source=LOG, evidence=line, rank=rank, time=log.written)


def _of_a_silent_rank(ending: Ending, log: LogTail) -> Iterator[_Candidate]:
    """Candidates of a rank without an exception: from its log, and from how its process ended."""
    crashed, in_legs = ending.ended == "crashed", ending.progress.leg in ("metadata", *TRAINED)
    found = [(pattern, line) for pattern, line in patterns_of_log(log.text)]
    for pattern, line in found:
        source = CRASH_LOG if crashed else LOG
        domain = Domain.UNKNOWN if pattern.domain == Domain.CODE and not in_legs else None
        yield _Candidate(
            pattern=pattern, source=source, evidence=line, domain=domain, rank=ending.rank, time=log.written
        )
    code = ending.exit_code or 0
    # torch aborts the process when its watchdog gives up on a collective: that crash is part of the cascade.
    gave_up = signal_of(code) == SIGABRT and any(pattern.role == Role.CASCADE for pattern, _ in found)
    if crashed and code in STORAGE_EXITS:
        how = f"exit code {code}: it could not write its record"
        yield _Candidate(pattern=table.STORAGE, source=EXCEPTION, evidence=how, rank=ending.rank)
    elif crashed and not gave_up:
        how = f"signal {signal_of(code)}" if signal_of(code) else f"exit code {code}"
        domain = None if in_legs else Domain.UNKNOWN  # outside the legs no code under test need have run
        yield _Candidate(pattern=table.NATIVE_CRASH, source=CRASH, evidence=how, domain=domain, rank=ending.rank)
    # The parent ends the remaining ranks with SIGTERM.
    if ending.ended in ("killed", "missing") and code and signal_of(code) != SIGTERM:
        how = f"exit code {code}"
        yield _Candidate(pattern=table.KILLED, source=KILLED, evidence=how, rank=ending.rank)


def patterns_of_log(text: str) -> Iterator[tuple[Pattern, str]]:
    """(row, line) of each line of a log that matches a row, in order; tear-down noise is skipped."""
    for raw in text.splitlines():
        if table.TEAR_DOWN.search(raw):
            continue
        line = table.PREFIX.sub("", raw).strip()
        pattern = next((pattern for pattern in table.PATTERNS if pattern.in_log(line)), None)
        if pattern is not None:
            yield pattern, line


def _silence(evidence: FailureEvidence) -> str:
    failed = [ending.rank for ending in evidence.endings if ending.ended != "completed"]
    return f"{numbered('rank', failed)} left no message" if failed else "no rank failed"
