"""How the ranks of a cell ended, and whether the code under test is to blame."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from harness.judge.failure_patterns import LOST_PEER
from harness.judge.places import counted
from harness.words.layout import Coordinates, Layout
from harness.words.legs import LEG_NAMES
from harness.words.records import CellResult, Failure, Progress, RankEnding, RankRecord

LEGS = ("start", "metadata", "training", *LEG_NAMES, "timing", "end")
TRAINED = ("training", *LEG_NAMES, "timing")  # legs that use the model, once the metadata leg is through
PHASES = ("setup", "start", "fetch", "forward", "backward", "reduce", "optimizer", "done")
# SIGILL, SIGABRT, SIGBUS, SIGFPE, SIGSEGV: the process broke by itself. Others (SIGKILL, SIGTERM) come from outside.
CRASH_SIGNALS = (4, 6, 7, 8, 11)
SIGTERM = 15


@dataclass(frozen=True, kw_only=True)
class Ending:
    rank: int
    place: Coordinates
    ended: str  # completed | raised | crashed | deadline | killed | missing
    progress: Progress
    failure: Failure | None = None
    hang: str | None = None  # collective the rank waited in when it hit the deadline
    exit_code: int | None = None

    @property
    def order(self) -> tuple[int, int, int, int]:
        """Sorts ranks by how far they came."""
        progress = self.progress
        leg = LEGS.index(progress.leg) if progress.leg in LEGS else 0
        phase = PHASES.index(progress.phase) if progress.phase in PHASES else 0
        return leg, progress.step, progress.micro_batch, phase

    @property
    def at(self) -> str:
        """E.g. 'training leg, step 1, micro-batch 0, forward'."""
        progress = self.progress
        leg = f"canary leg {progress.leg}" if progress.leg in LEG_NAMES else f"{progress.leg} leg"
        return f"{leg}, step {progress.step}, micro-batch {progress.micro_batch}, {progress.phase}"


def endings_of(layout: Layout, records: Mapping[int, RankRecord], result: CellResult | None) -> list[Ending]:
    """One ending per rank of the layout, in rank order; a rank without a record is `missing`."""
    seen = {item.rank: item for item in result.ranks} if result else {}
    endings = []
    for rank in range(layout.world_size):
        record, process = records.get(rank), seen.get(rank)
        endings.append(
            Ending(
                rank=rank,
                place=layout.coordinates(rank),
                ended=_ended(record, process),
                progress=record.progress if record else Progress(),
                failure=record.failure if record else None,
                hang=process.hang if process else None,
                exit_code=process.exit_code if process else None,
            )
        )
    return endings


def _ended(record: RankRecord | None, process: RankEnding | None) -> str:
    """The record's own word; a record that still says `running` was cut off, and its parent knows how."""
    if record is not None and record.ended in ("completed", "raised", "deadline"):
        return record.ended
    if record is not None and process is not None and process.ended in ("raised", "deadline"):
        return process.ended
    if process is not None and _died_by_itself(process.exit_code):
        return "crashed"
    return "missing" if record is None else "killed"


def _died_by_itself(exit_code: int | None) -> bool:
    """A crash signal, or an exit of its own with an error code; other signals come from outside."""
    return exit_code is not None and (signal_of(exit_code) in CRASH_SIGNALS or 0 < exit_code < 128)


def signal_of(exit_code: int) -> int:
    """Signal number of a process that died of one (negative or 128 + n), else 0."""
    return -exit_code if exit_code < 0 else max(exit_code - 128, 0)


@dataclass(frozen=True, kw_only=True)
class Cause:
    """Why a cell did not complete: the first rank that failed."""

    ending: Ending
    others: tuple[int, ...]  # further ranks that did not complete
    blames_code: bool  # False: infrastructure, nothing can be concluded
    message: str


def cause_of(endings: list[Ending], result: CellResult | None) -> Cause | None:
    """The first failing rank and whose fault it is; None when every rank completed.

    An exception, a native crash or a hang in a collective, in any leg, is the fault of the code under test. A rank
    killed from outside, a missing record, a failure in set-up (also of the model) or tear-down, and a deadline at which
    no rank was waiting for another are infrastructure.
    """
    failed = [ending for ending in endings if ending.ended != "completed"]
    if not failed:
        return None
    first = _first(failed, result)
    in_legs = first.progress.leg in ("metadata", *TRAINED) and first.progress.phase != "setup"
    waited = any(ending.hang for ending in failed)
    blames = in_legs and (first.ended in ("raised", "crashed") or (first.ended == "deadline" and waited))
    if result is not None and result.status == "error":
        blames = False
    others = tuple(ending.rank for ending in failed if ending.rank != first.rank)
    return Cause(ending=first, others=others, blames_code=blames, message=_message(first, failed))


def _first(failed: list[Ending], result: CellResult | None) -> Ending:
    """The rank that the others' ends follow from.

    The earliest exception that is not about a lost peer. Else a rank that died, by itself or by a stranger's hand
    (SIGTERM is how the parent ends the ranks that are left). Else, at a deadline, the one with least progress.
    """
    died = [ending for ending in failed if ending.ended == "crashed"]
    died += [ending for ending in failed if ending.ended == "killed" and signal_of(ending.exit_code or 0) != SIGTERM]
    died = [ending for ending in died if ending.exit_code]
    raised = [ending for ending in failed if ending.ended == "raised"]
    own = [ending for ending in raised if not _lost_peer(ending)]
    if died and not own:
        named = [ending for ending in died if result and ending.rank == result.first_failure_rank]
        return (named or died)[0]
    if own:
        return min(own, key=lambda ending: (ending.failure.time if ending.failure else math.inf, ending.rank))
    silent = [ending for ending in failed if ending.ended in ("killed", "missing", "deadline")]
    return min(silent or raised, key=lambda ending: (ending.ended != "deadline", ending.order, ending.rank))


def _lost_peer(ending: Ending) -> bool:
    """The exception only says that another rank went away."""
    return ending.failure is not None and LOST_PEER.in_exception(ending.failure.message)


def _message(first: Ending, failed: list[Ending]) -> str:
    who = f"rank {first.rank} ({first.place})"
    if first.ended == "raised":
        detail = f"{first.failure.type}: {first.failure.message}" if first.failure else "an exception"
        return f"{who} raised in the {first.at}: {detail}"
    if first.ended == "crashed":
        signal = signal_of(first.exit_code or 0)
        how = f"died of signal {signal}" if signal else f"left with exit code {first.exit_code}"
        return f"{who} {how} in the {first.at}"
    if first.ended == "deadline":
        waits: dict[str, list[int]] = {}
        for ending in failed:
            if ending.hang:
                waits.setdefault(ending.hang, []).append(ending.rank)
        if not waits:
            return f"the deadline passed with no rank waiting in a collective; {who} was last, in the {first.at}"
        step = max(ending.progress.step for ending in failed)
        where = " and ".join(f"{name} ({counted('rank', ranks)})" for name, ranks in waits.items())
        return f"hang in {where} at step {step}; {who} came least far: {first.at}"
    if first.ended == "missing":
        return f"{who} left no record"
    if first.exit_code is None:
        return f"{who} was cut off, nobody knows how, in the {first.at}"
    return f"{who} was killed from outside (exit code {first.exit_code}) in the {first.at}"
