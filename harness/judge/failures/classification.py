"""Classifies a failure by its evidence: a root comes before a cascade, and text alone never allows a retry.

From top to bottom: who is to blame for an exception, what hung, the cause of a rank's failure, that of a cell.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from harness.core.errors import STORAGE_EXITS
from harness.core.outcomes import Domain, Retry, Role
from harness.core.run.records import CellResult, Failure, Progress, RankRecord
from harness.core.upstream import CODE, HARNESS, KERNEL, deciding, owner_of
from harness.judge.evidence.endings import CRASH_SIGNALS, SIGTERM, TRAINED, Ending, signal_of
from harness.judge.failures import patterns as table
from harness.judge.failures.patterns import GPU_MEMORY, HOST_MEMORY, Pattern
from harness.judge.locations import numbered, where_of

_FULL = frozenset({"ENOSPC", "EDQUOT"})
# Errors of storage and hosts, for any I/O. ENOENT and the like may be a wrong path of the code under test.
_STORAGE = ("ESTALE", "EIO", "EROFS", "EACCES", "EPERM", "ENOLCK", "EREMOTEIO", "ENOTCONN", "ENXIO", "EUCLEAN")
_OPEN_FILES = ("EMFILE", "ENFILE")
_HOST = ("EBUSY", "ESHUTDOWN", "EHOSTDOWN")
_NETWORK = ("ECONNREFUSED", "EHOSTUNREACH", "ENETUNREACH", "ENETDOWN", "EADDRNOTAVAIL", "EADDRINUSE", "ETIMEDOUT")
_ASYNCHRONOUS = (table.GPU_MEMORY_ACCESS, table.NON_FINITE)
# Only wrong code raises these. Other exceptions during set-up come from hosts and libraries, which have no frames.
_PROGRAM_ERRORS = ("TypeError", "AttributeError", "NameError", "KeyError", "IndexError", "AssertionError")
_IMPORTS = ("ImportError", "ModuleNotFoundError")
_NO_MEMORY = (table.GPU_MEMORY, table.HOST_MEMORY)
_OF_THE_MACHINE = (table.HOST_MEMORY, table.KILLED)
_ALLOCATOR = "DefaultCPUAllocator"  # torch's own: it refuses one request, which it states, for its size


class Blame(NamedTuple):
    """The class of an exception, and the domain that is to blame for it."""

    pattern: Pattern  # the class of the failure
    domain: Domain
    frame: str = ""  # the frame that decided; empty if the kind of error did


def blame_of(failure: Failure, progress: Progress) -> Blame:
    """Return the class of an exception and who is to blame. `progress`: where the rank was when it raised.

    1. An error of the operating system, storage, network or a device is infrastructure wherever it is raised; gloo's
       refusal of a tensor on a GPU is the harness's, which chose gloo.
    2. An error that only follows from the end of another rank proves nothing about this rank.
    3. An asynchronous kernel error, NaN or Inf is the code's: it may be raised in any frame.
    4. A name that the harness looks up and the stack lacks is unknown: it may have been renamed. So is a failed import:
       the environment may lack the module. So is memory that the machine lacks, or a process that something killed:
       others share the machine. So is a configuration that upstream's parser or validation refuses during set-up, since
       the harness or `args` chose it.
    5. Otherwise the innermost frame of the code under test or the harness decides. torch and the standard library own
       no frame: they raise because of their callers.
    """
    owner, frame = deciding(failure.frames)
    pattern = _of_the_system(failure, owner) or pattern_of_exception(failure.type, failure.message)
    if pattern is table.GLOO_DEVICE:
        return Blame(pattern, pattern.domain, frame)
    if pattern.domain == Domain.INFRASTRUCTURE or pattern in _ASYNCHRONOUS:
        return Blame(pattern, pattern.domain)
    if pattern.role == Role.CASCADE:
        row = table.UNREACHABLE if progress.leg == "start" else pattern
        return Blame(row, row.domain)
    if failure.absent:
        return Blame(table.ABSENT_NAME, Domain.UNKNOWN, frame)
    if failure.type in _IMPORTS:  # a gap in the environment proves nothing about what the code computes
        return Blame(table.IMPORT, Domain.UNKNOWN, frame)
    if pattern in _OF_THE_MACHINE and _ALLOCATOR not in failure.message:
        return Blame(pattern, Domain.UNKNOWN, frame)
    if failure.refused and progress.phase == "setup":
        return Blame(table.CONFIGURATION, Domain.UNKNOWN, frame)
    if owner == CODE:
        return Blame(pattern, Domain.CODE, frame)
    if owner in (HARNESS, KERNEL):
        return _of_the_harness(failure, progress, owner, frame, pattern)
    # Records of earlier releases have no frames, only the location of the failure.
    by_code = progress.leg != "start" and progress.phase != "setup"
    return Blame(pattern, Domain.CODE if by_code else Domain.UNKNOWN)


def _of_the_harness(failure: Failure, progress: Progress, owner: str, frame: str, pattern: Pattern) -> Blame:
    if pattern in _NO_MEMORY:  # it allocated within its share, but the machine had no memory left
        return Blame(pattern, Domain.UNKNOWN, frame)
    if owner == KERNEL:
        return Blame(table.REPLACEMENT, Domain.HARNESS, frame)
    if progress.leg == "start" and failure.type not in _PROGRAM_ERRORS:
        return Blame(table.SETUP, Domain.UNKNOWN, frame)
    return Blame(table.HARNESS_DEFECT, Domain.HARNESS, frame)


def _of_the_system(failure: Failure, owner: str) -> Pattern | None:
    """Return the row of an error with an errno; None for any other."""
    if failure.errno in _FULL:
        return table.DISK
    if failure.errno in _OPEN_FILES:
        return table.OPEN_FILES
    if failure.errno in (*_STORAGE, *_HOST):
        return table.STORAGE
    if failure.errno in _NETWORK:
        return table.UNREACHABLE if failure.errno == "ECONNREFUSED" else table.NETWORK
    # Any error of a file that the harness itself reads or writes, e.g. ENOENT of a run directory that was removed.
    own_file = failure.errno and owner == HARNESS and failure.errno not in ("ECONNRESET", "EPIPE", "ENOMEM")
    return table.STORAGE if own_file else None


def pattern_of_exception(type_name: str, message: str) -> Pattern:
    """Return the first row whose expression matches an exception; PYTHON if none does."""
    text = f"{type_name}: {message}"
    return next((pattern for pattern in table.PATTERNS if pattern.in_exception(text)), table.PYTHON)


UNITS = {"bytes": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30}
# torch 2.x: "CUDA out of memory. Tried to allocate 20.00 GiB."; on the CPU: "you tried to allocate 4096 bytes."
_TRIED = re.compile(r"tried to allocate ([0-9.]+) (bytes|KiB|MiB|GiB)\b", re.I)


def out_of_memory(failure: Failure | None) -> bool:
    """Return whether a rank raised because its device, or its share of the machine, had no memory left."""
    if failure is None:
        return False
    return pattern_of_exception(failure.type, failure.message) in (GPU_MEMORY, HOST_MEMORY)


def tried_bytes(message: str) -> int | None:
    """Return the size of the allocation that failed; None if the message does not contain it."""
    match = _TRIED.search(message)
    return round(float(match[1]) * UNITS[match[2]]) if match else None


def memory_limit(records: Iterable[RankRecord]) -> int | None:
    """Return the smallest memory limit of any rank, in bytes; None if no rank recorded one."""
    limits = [record.environment.get("memory_limit_bytes", "") for record in records]
    return min((int(limit) for limit in limits if limit), default=None)


def memory_text(record: RankRecord) -> str:
    """Return text such as "tried to allocate 20 GiB in one piece; peak 100 GiB, 103 GiB reserved, of 139 GiB"."""
    tried = tried_bytes(record.failure.message) if record.failure else None
    parts = [f"tried to allocate {size_text(tried)} in one piece"] if tried is not None else []
    held = f"peak {size_text(record.peak_memory_bytes)}" if record.peak_memory_bytes else ""
    if record.peak_reserved_bytes:
        held += f", {size_text(record.peak_reserved_bytes)} reserved"
    limit = memory_limit([record])
    held += f", of {size_text(limit)}" if limit and held else ""
    return "; ".join([*parts, held] if held else parts)


def size_text(count: float) -> str:
    """Return a size in the largest unit that it reaches: 20 GiB, 1.5 MiB."""
    for unit in ("GiB", "MiB", "KiB"):
        if count >= UNITS[unit]:
            return f"{count / UNITS[unit]:.4g} {unit}"
    return f"{count:g} bytes"


_POINT_TO_POINT = re.compile(r"(send|recv) ")
_MEMBERS = re.compile(r"\d+")


# What the stacks of ranks at the deadline prove: a hang blames the code only if one rank waited and another never
# arrived.
class Stall(NamedTuple):
    """Ranks that had not ended by the deadline."""

    pattern: Pattern  # HANG, the only one that blames the code; FROZEN, STALLED or DEADLINE
    rank: int  # that the others waited for, or that made the least progress
    text: str  # the evidence


def stall_of(endings: Sequence[Ending]) -> Stall | None:
    """Return the stall of a cell; None when no rank reached the deadline. `endings`: of all its ranks."""
    late = [ending for ending in endings if ending.ended == "deadline"]
    if not late:
        return None
    last = min(late, key=lambda ending: (ending.order, ending.rank))
    dumpless = [ending for ending in late if ending.stack is None and ending.hang is None]
    frozen = [ending for ending in dumpless if signal_of(ending.exit_code or 0) not in CRASH_SIGNALS]
    waiting = [ending for ending in late if ending.hang]
    if frozen and len(frozen) < len(late):
        return Stall(table.FROZEN, frozen[0].rank, _frozen(frozen, waiting))
    if dumpless:
        ranks = numbered("rank", [ending.rank for ending in dumpless])
        text = f"the deadline passed, and {ranks} left no stack; {_who(last)} made the least progress: {last.at}"
        return Stall(table.DEADLINE, last.rank, text)
    if not waiting:
        text = (
            f"the deadline passed with no rank waiting in a collective; {_who(last)} made the least progress: {last.at}"
        )
        return Stall(table.DEADLINE, last.rank, text)
    step = max(ending.progress.step for ending in late)
    waits = f"{_waits(waiting)} at step {step}"
    if not all(ending.stalled for ending in late):
        moving = [ending.rank for ending in late if not ending.stalled]
        text = (
            f"the deadline passed while {numbered('rank', moving)} still made progress, with ranks waiting in {waits}"
        )
        return Stall(table.DEADLINE, last.rank, text)
    return _proven(endings, late, waiting, last, waits)


def _proven(endings: Sequence[Ending], late: list[Ending], waiting: list[Ending], last: Ending, waits: str) -> Stall:
    """Return the stall of ranks that wait without progress for long: blame the one that never arrived, if any."""
    away = [ending for ending in late if not ending.hang]
    if away:
        absent = min(away, key=lambda ending: (ending.order, ending.rank))
        owner, frame = deciding(absent.stack or ())
        text = f"hang in {waits}; {_who(absent)} never arrived: it was at {frame or 'an unknown place'}, {absent.at}"
        # A rank inside the harness, e.g. in a write that does not return, proves nothing about the code.
        return Stall(table.HANG if owner == CODE else table.DEADLINE, absent.rank, text)
    rest = [ending for ending in endings if ending.ended != "deadline"]
    if any(ending.ended != "completed" for ending in rest):
        return Stall(table.DEADLINE, last.rank, f"ranks waited in {waits} while others were lost")
    if rest:
        left = numbered("rank", [ending.rank for ending in rest])
        text = f"hang in {waits}; {left} had ended; {_who(last)} made the least progress: {last.at}"
        return Stall(table.HANG, last.rank, text)
    calls = _calls(waiting)
    by_code = any(ending.flight or deciding(ending.stack or ())[0] == CODE for ending in waiting)
    if len(calls) > 1 and by_code:
        others = f"it never arrived where the others waited: it was at {_place(last)}, {last.at}"
        return Stall(table.HANG, last.rank, f"hang in {waits}; {_who(last)} made the least progress; {others}")
    if len(calls) > 1:
        return Stall(table.DEADLINE, last.rank, f"ranks waited in {waits}, only in calls of the harness")
    return Stall(table.STALLED, last.rank, f"every rank waited in the same call, {waits}: {_place(last)}")


def _calls(waiting: Sequence[Ending]) -> set[object]:
    """Return the distinct collective calls that ranks wait in; more than one when ranks wait for each other.

    From NCCL's flight recorder where it has entries, since on a GPU the host continues while a collective waits. Else
    from the name of the collective and the code's frames of the call.
    """
    flights = [ending for ending in waiting if ending.flight]
    if not flights:
        return {
            (ending.hang, *(frame for frame in ending.stack or () if owner_of(frame) == CODE)) for ending in waiting
        }
    groups: dict[str, set[str]] = {}
    entries = {ending.rank: {_group(entry): entry for entry in ending.flight} for ending in flights}
    for by_group in entries.values():
        for group, entry in by_group.items():
            # The two ends of one transfer have different entries, send and recv, and still wait in the same call.
            groups.setdefault(group, set()).add(entry if _POINT_TO_POINT.match(entry) is None else "")
    members = {group: [int(rank) for rank in _MEMBERS.findall(group.rpartition("[")[2])] for group in groups}
    absent = {
        f"{rank} not in {group}" for group in groups for rank in members[group] if group not in entries.get(rank, {})
    }
    return {*absent, *max(groups.values(), key=len)}


def _group(entry: str) -> str:
    """Return the group in an entry of runtime/recording/flight_recorder.py: "TENSOR_MODEL_PARALLEL_GROUP [0, 1]"."""
    return entry.partition(" of group ")[2].partition(", inputs")[0]


def _place(ending: Ending) -> str:
    return deciding(ending.stack or ())[1] or ending.hang or "an unknown place"


def _frozen(frozen: list[Ending], waiting: list[Ending]) -> str:
    ranks = numbered("rank", [ending.rank for ending in frozen])
    text = f"{ranks} left no stack at the deadline, so the process was stopped or blocked in the kernel"
    return f"{text}; waiting for it: {_waits(waiting)}" if waiting else text


def _waits(waiting: list[Ending]) -> str:
    """Return e.g. 'broadcast (ranks 0, 1) and barrier (rank 2)'."""
    ranks: dict[str, list[int]] = {}
    for ending in waiting:
        ranks.setdefault(ending.hang or "", []).append(ending.rank)
    return " and ".join(f"{name} ({numbered('rank', waiters)})" for name, waiters in ranks.items())


def _who(ending: Ending) -> str:
    return f"rank {ending.rank} ({ending.place})"


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
        """Return the domain that is to blame."""
        return self.failure_class.domain

    @property
    def blames_code(self) -> bool:
        """Return whether the code is to blame; if not, nothing can be concluded about the code under test."""
        return self.domain == Domain.CODE

    @property
    def others_text(self) -> str:
        """Return which other ranks did not complete; '' when every other rank did."""
        return f"; {numbered('rank', self.others)} did not complete either" if self.others else ""

    @property
    def where(self) -> dict[str, Any]:
        """Return the place of the first failure, as `where` of a finding."""
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
    """Return the cause of a failure, and where it began; None when every rank completed.

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
    """Return the rank of the class; but before a rank that lost its peer, one that vanished without a trace.

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
    """Return how the first rank that failed ended."""
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
    """Return what the ending of the rank does not say: how the scheduler ended the job, or what a log shows."""
    silent = first.ended in ("killed", "missing")
    row = next((row for row in table.PATTERNS if state and row.in_state(state)), None)
    if row is not None and (silent or known.rank is None):
        return f": {row.title} (job state {state})"
    if first.ended != "raised" and known.rank in (None, first.rank) and known.name not in _BY_ENDING:
        return f": {known.title}"
    return "; cause unknown" if first.ended == "killed" and first.exit_code is None else ""


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
    """A failure as it is reported: its class, who is to blame, and whether to retry."""

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
        """Return the domain to blame: as frames or the leg decide, else the row's."""
        return self.domain or self.pattern.domain


def classify(evidence: FailureEvidence) -> FailureClass:
    """Return the class of the first root cause; if there is none, of the first cascade; else unknown.

    Exceptions are ordered by time, but the rank that is known to have failed first comes first. NCCL and gloo
    time-outs and lost peers are cascades. NaN and Inf found anywhere take precedence over any class that allows a
    retry, but then no component is named as at fault: a failing machine can compute anything.
    """

    def certainty(candidate: _Candidate) -> tuple[int, bool, float, int]:
        by_code = candidate.source == LOG and candidate.pattern.domain == Domain.CODE
        later = candidate.rank is None or candidate.rank != evidence.first_failed
        return (
            CRASH_LOG if by_code else candidate.source,
            later,
            candidate.time,
            -1 if candidate.rank is None else candidate.rank,
        )

    candidates = list(_candidates(evidence))
    roots = [candidate for candidate in candidates if candidate.pattern.role == Role.ROOT]
    # Ranks that wait for each other run into the job's limit or its cancellation: both follow from the hang.
    if any(candidate.pattern is table.HANG for candidate in roots):
        roots = [candidate for candidate in roots if candidate.pattern not in (table.TIME_LIMIT, table.CANCELLED)]
    chosen = min(roots or candidates, key=certainty, default=None)
    numeric = [candidate for candidate in roots if candidate.pattern is table.NON_FINITE]
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
    """Return the component at fault. Neither a log line alone nor an attempt given up by its agent proves the code."""
    if chosen.blamed != Domain.CODE:
        return chosen.blamed
    if evidence.given_up:
        return Domain.INFRASTRUCTURE
    proven = any(candidate.source != LOG and candidate.blamed == Domain.CODE for candidate in roots)
    return Domain.CODE if proven else Domain.UNKNOWN


def _outlook(chosen: _Candidate, evidence: FailureEvidence) -> Retry:
    """Return OTHER_NODES only for infrastructure proven by more than a log line: a state, exception or lost rank."""
    pattern = chosen.pattern
    if pattern.retry_advice != Retry.OTHER_NODES:
        return pattern.retry_advice
    gone = any(ending.ended in ("killed", "missing") for ending in evidence.endings)
    proven = chosen.source in (EXCEPTION, SCHEDULER) or pattern is table.FROZEN or gone
    return Retry.OTHER_NODES if pattern.domain == Domain.INFRASTRUCTURE and proven else Retry.UNKNOWN


def _candidates(evidence: FailureEvidence) -> Iterator[_Candidate]:
    for pattern in table.PATTERNS:
        if evidence.scheduler_state and pattern.in_state(evidence.scheduler_state):
            words = evidence.scheduler_words or f"job state {evidence.scheduler_state}"
            yield _Candidate(pattern=pattern, source=SCHEDULER, evidence=words)
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
    """Yield candidates of a rank that raised: the exception and, if that is only a consequence, the rank's log."""
    failure, rank = ending.failure, ending.rank
    assert failure is not None
    pattern, domain, frame = blame_of(failure, ending.progress)
    text = f"{failure.type}: {failure.message}{f', at {frame}' if frame else ''}"
    yield _Candidate(pattern=pattern, source=EXCEPTION, evidence=text, domain=domain, rank=rank, time=failure.time)
    if pattern.role == Role.CASCADE:
        for log_pattern, line in patterns_of_log(log.text):
            yield _Candidate(pattern=log_pattern, source=LOG, evidence=line, rank=rank, time=log.written)


def _of_a_silent_rank(ending: Ending, log: LogTail) -> Iterator[_Candidate]:
    """Yield candidates of a rank without an exception: from its log, and from how its process ended."""
    crashed, in_legs = ending.ended == "crashed", ending.progress.leg in ("metadata", *TRAINED)
    matches = list(patterns_of_log(log.text))
    for pattern, line in matches:
        source = CRASH_LOG if crashed else LOG
        domain = Domain.UNKNOWN if pattern.domain == Domain.CODE and not in_legs else None
        yield _Candidate(
            pattern=pattern, source=source, evidence=line, domain=domain, rank=ending.rank, time=log.written
        )
    code = ending.exit_code or 0
    # torch aborts the process when its watchdog gives up on a collective: that crash is part of the cascade.
    gave_up = signal_of(code) == SIGABRT and any(pattern.role == Role.CASCADE for pattern, _ in matches)
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
    """Yield (row, line) of each line of a log that matches a row, in order; tear-down noise is skipped."""
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
