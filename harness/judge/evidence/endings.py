"""How the ranks of a cell ended."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, get_args

from harness.core.cell.canary_legs import LEG_NAMES
from harness.core.cell.layout import Coordinates, Layout
from harness.core.run.records import CellResult, Failure, LegName, Phase, Progress, RankEnding, RankRecord

LEGS: tuple[LegName, ...] = get_args(LegName)
# Legs that use the model, after the metadata leg.
TRAINED: tuple[LegName, ...] = ("training", "evaluation", *LEG_NAMES, "timing")
PHASES: tuple[Phase, ...] = get_args(Phase)
# SIGILL, SIGABRT, SIGBUS, SIGFPE, SIGSEGV: the process itself crashed. Others (SIGKILL, SIGTERM) come from outside.
CRASH_SIGNALS = (4, 6, 7, 8, 11)
SIGTERM = 15
STALL_S = 2.0  # a rank without progress for less than this is not stalled,
STALL_SHARE = 0.2  # nor for less than this share of the cell's deadline


Ended = Literal["completed", "raised", "crashed", "deadline", "killed", "missing"]


@dataclass(frozen=True, kw_only=True)
class Ending:
    """How one rank ended, and how far it came."""

    rank: int
    place: Coordinates
    ended: Ended
    progress: Progress
    failure: Failure | None = None
    hang: str | None = None  # collective in which the rank waited at the deadline
    exit_code: int | None = None
    stack: tuple[str, ...] | None = None  # frames dumped at the deadline, innermost last; None: there is no dump
    flight: tuple[str, ...] = ()  # collectives that NCCL's flight recorder had not seen complete
    stalled: bool = False  # it reported no progress for a while before the deadline: STALL_S, STALL_SHARE

    @property
    def order(self) -> tuple[int, int, bool, int, int]:
        """Return the sort key: how far the rank came."""
        progress = self.progress
        evaluates = progress.leg == "evaluation"
        name = "training" if evaluates else progress.leg
        leg = LEGS.index(name) if name in LEGS else 0
        phase = PHASES.index(progress.phase) if progress.phase in PHASES else 0
        # The evaluation after n steps comes before step n, which counts from 0.
        return leg, progress.step, not evaluates, progress.micro_batch, phase

    @property
    def at(self) -> str:
        """Return e.g. 'training leg, step 1, micro-batch 0, forward'."""
        progress = self.progress
        if progress.leg == "evaluation":
            return f"evaluation after step {progress.step}, micro-batch {progress.micro_batch}, {progress.phase}"
        leg = f"canary leg {progress.leg}" if progress.leg in LEG_NAMES else f"{progress.leg} leg"
        return f"{leg}, step {progress.step}, micro-batch {progress.micro_batch}, {progress.phase}"


def endings_of(
    layout: Layout, records: Mapping[int, RankRecord], result: CellResult | None, *, deadline_s: float
) -> list[Ending]:
    """Return one ending per rank of the layout, in rank order; a rank without a record is `missing`.

    `deadline_s`: the cell's. An attempt that ends by its deadline lasts that long, whatever its clocks say.
    """
    given_s = max(deadline_s, result.deadline_s) if result else deadline_s
    processes = {ending.rank: ending for ending in result.ranks} if result else {}
    endings = []
    for rank in range(layout.world_size):
        record, process = records.get(rank), processes.get(rank)
        endings.append(
            Ending(
                rank=rank,
                place=layout.coordinates(rank),
                ended=_ended(record, process),
                progress=record.progress if record else Progress(),
                failure=record.failure if record else None,
                hang=process.hang if process else None,
                exit_code=process.exit_code if process else None,
                stack=tuple(process.stack) if process and process.stack is not None else None,
                flight=tuple(process.flight) if process else (),
                stalled=_stalled(process, given_s),
            )
        )
    return endings


def _ended(record: RankRecord | None, process: RankEnding | None) -> Ended:
    """Return the ending in the record; if that still says `running`, the process died, and its parent saw how."""
    if record is not None and record.ended in ("completed", "raised", "deadline"):
        return record.ended
    if record is not None and process is not None and process.ended in ("raised", "deadline"):
        return process.ended
    if process is not None and _died_by_itself(process.exit_code):
        return "crashed"
    return "missing" if record is None else "killed"


def _stalled(process: RankEnding | None, deadline_s: float) -> bool:
    """Return whether the rank had stopped; one that is only slow reports progress at times."""
    still_s = None if process is None else process.still_s
    return still_s is not None and still_s >= max(STALL_S, STALL_SHARE * deadline_s)


def _died_by_itself(exit_code: int | None) -> bool:
    """Return whether it was a crash signal, or an exit with an error code; other signals come from outside."""
    return exit_code is not None and (signal_of(exit_code) in CRASH_SIGNALS or 0 < exit_code < 128)


def signal_of(exit_code: int) -> int:
    """Return the signal that ended a process (exit code negative or 128 + n), else 0."""
    return -exit_code if exit_code < 0 else max(exit_code - 128, 0)
