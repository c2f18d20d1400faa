"""What the stacks of ranks at the deadline prove: a hang blames the code only if one rank waited and another
never arrived."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from harness.core.upstream import CODE, deciding, owner_of
from harness.judge.evidence.endings import CRASH_SIGNALS, Ending, signal_of
from harness.judge.failures import patterns as table
from harness.judge.failures.patterns import Pattern
from harness.judge.locations import numbered

_POINT_TO_POINT = re.compile(r"(send|recv) ")
_MEMBERS = re.compile(r"\d+")


class Stall(NamedTuple):
    """Ranks that had not ended by the deadline."""

    pattern: Pattern  # HANG, the only one that blames the code; FROZEN, STALLED or DEADLINE
    rank: int  # that the others waited for, or that made the least progress
    text: str  # the evidence


def stall_of(endings: Sequence[Ending]) -> Stall | None:
    """The stall of a cell; None when no rank reached the deadline. `endings`: of all its ranks."""
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
    """The stall of ranks that wait and made no progress for long: blames the one that never arrived, if any."""
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
    """The distinct collective calls that ranks wait in; more than one when ranks wait for each other.

    From NCCL's flight recorder where it has entries, since on a GPU the host continues while a collective waits. Else
    from the name of the collective and the code's frames of the call.
    """
    flights = [ending for ending in waiting if ending.flight]
    if not flights:
        return {
            (ending.hang, *(frame for frame in ending.stack or () if owner_of(frame) == CODE)) for ending in waiting
        }
    groups: dict[str, set[str]] = {}
    entries = {ending.rank: {_group(item): item for item in ending.flight} for ending in flights}
    for found in entries.values():
        for group, item in found.items():
            groups.setdefault(group, set()).add(item if _POINT_TO_POINT.match(item) is None else "")
    members = {group: [int(rank) for rank in _MEMBERS.findall(group.rpartition("[")[2])] for group in groups}
    absent = {
        f"{rank} not in {group}" for group in groups for rank in members[group] if group not in entries.get(rank, {})
    }
    return {*absent, *max(groups.values(), key=len)}


def _group(entry: str) -> str:
    """The group in an entry of node/recording/flight_recorder.py, e.g. "TENSOR_MODEL_PARALLEL_GROUP [0, 1]"."""
    return entry.partition(" of group ")[2].partition(", inputs")[0]


def _place(ending: Ending) -> str:
    return deciding(ending.stack or ())[1] or ending.hang or "an unknown place"


def _frozen(frozen: list[Ending], waiting: list[Ending]) -> str:
    ranks = numbered("rank", [ending.rank for ending in frozen])
    text = f"{ranks} left no stack at the deadline, so the process was stopped or blocked in the kernel"
    return f"{text}; waiting for it: {_waits(waiting)}" if waiting else text


def _waits(waiting: list[Ending]) -> str:
    """E.g. 'broadcast (ranks 0, 1) and barrier (rank 2)'."""
    ranks: dict[str, list[int]] = {}
    for ending in waiting:
        ranks.setdefault(ending.hang or "", []).append(ending.rank)
    return " and ".join(f"{name} ({numbered('rank', found)})" for name, found in ranks.items())


def _who(ending: Ending) -> str:
    return f"rank {ending.rank} ({ending.place})"
