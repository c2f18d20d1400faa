"""What the timing leg of a cell measures, and the samples that it records.

Timing is interleaved: the leg runs all its loads in every round, and each round in the reverse order of the one
before. So loads are compared pair by pair, close in time, and a machine that slows down favours none of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from harness.core.cell.layout import Layout
from harness.core.setting import setting

DOCUMENTS = (4, 16, 64, 256)  # documents per pack in the loads of the segment slope
ROUNDS = 7  # the fewest in which a one-sided sign test can reach 1 %: 1 / 2^7
# Rounds that are not recorded: on a GPU several pass until kernels are loaded and tuned and the allocator has grown.
WARMUP: Mapping[str, int] = {"cpu": 1, "cuda": 3}
ROTARY_TOKENS = 4096  # approximate size of one call of the rotary function, over all context parallel ranks
STEP_TOKENS = 1024  # approximate size of one pack that goes through the model
ROTARY_HEADS, ROTARY_SIZE = 4, 64  # heads, and elements of a head


@dataclass(frozen=True, kw_only=True)
class TimingConfig:
    """What the timing leg measures; nothing by default."""

    documents: tuple[int, ...] = ()  # per pack, ascending: the loads of the segment slope
    unpacked: bool = False  # time step 0 as packed by the data path, and with one document per row
    full_rows: bool = setting(
        False, doc="Time rows of one document of full length, to compare packed rows with.", later=True
    )
    rounds: int = ROUNDS
    warmup: int = setting(0, doc="Rounds before those that are recorded; 0: as in WARMUP.", later=True)
    tokens: int = setting(0, doc="Approximate size of a pack; 0: ROTARY_TOKENS and STEP_TOKENS.", later=True)
    turns: str = ""  # name of the pair of cells whose steps are interleaved, one in each of two stacks
    first: bool = False  # this cell of the pair starts

    @property
    def timed(self) -> bool:
        return self.unpaired or bool(self.turns)

    @property
    def unpaired(self) -> bool:
        """Whether anything is timed that needs no other cell."""
        return bool(self.documents) or self.unpacked or self.full_rows

    def warmup_on(self, device: str) -> int:
        """Warm-up rounds on a kind of device, "cpu" or "cuda"; at least one."""
        return self.warmup or WARMUP[device]


NOT_TIMED = TimingConfig()


@dataclass(kw_only=True)
class Timed:
    """One load in one round on one rank.

    | load | passes |
    |---|---|
    | rotary | the stack's rotary function alone, over packs of `documents` |
    | rotary_other | the same, fused if `rotary` is not, and vice versa |
    | step | forward and backward of the whole model, over packs of `documents` |
    | packed, unpacked | forward and backward over the documents of step 0; `documents` is 0 |
    | full | the same over as many rows of one document of full length |
    | turn | the step as the data path runs it, while the other stack waits |
    """

    load: str
    documents: int
    round: int
    seconds: float  # on a CPU processor time, since other processes share it; on a GPU between two CUDA events


Moment = Literal["before", "under load", "after"]  # of the timing leg


@dataclass(kw_only=True)
class GpuState:
    """What the driver reported about a rank's GPU at one moment; values that it did not report are None."""

    when: Moment
    sm_clock_mhz: int | None = None
    memory_clock_mhz: int | None = None
    power_w: float | None = None
    power_limit_w: float | None = None
    temperature_c: int | None = None
    slowed_by: list[str] | None = None  # reasons for lower clocks at that moment
    missing: str = ""  # why fields are None


def step_tokens(timing: TimingConfig, layout: Layout) -> int:
    """Return the tokens of a pack in the `step` loads."""
    return _near(timing.tokens or STEP_TOKENS, timing.documents[-1] * layout.alignment)


def rotary_tokens(timing: TimingConfig, layout: Layout) -> int:
    """Return the tokens of a call in the `rotary` loads."""
    return _near(timing.tokens or ROTARY_TOKENS, timing.documents[-1] * layout.alignment)


def _near(tokens: int, unit: int) -> int:
    """Return the multiple of `unit` nearest to `tokens`; documents of equal, aligned lengths fill it."""
    return unit * max(round(tokens / unit), 1)


@dataclass(kw_only=True)
class Lap:
    """The time of one part of a cell on one rank."""

    time_s: float = 0.0
    busy_s: float = 0.0  # this process's processor time
