"""What the timing leg of a cell measures, and the samples that it records.

Timing is interleaved: the leg runs all its workloads in every round, and each round in the reverse order of the one
before. So workloads are compared pair by pair, close in time, and a machine that slows down favours none of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from harness.core.cell.layout import Layout
from harness.core.setting import setting

DOCUMENTS = (4, 16, 64, 256)  # per pack, of the segment slope
ROUNDS = 7  # the fewest in which a one-sided sign test can reach 1 %: 1 / 2^7
# Rounds that are not recorded: on a GPU several pass until kernels are loaded and tuned and the allocator has grown.
WARMUP: Mapping[str, int] = {"cpu": 1, "cuda": 3}
ROTARY_TOKENS = 4096  # about, of one call of the rotary function, over all context ranks
STEP_TOKENS = 1024  # about, of one pack that goes through the model
ROTARY_HEADS, ROTARY_SIZE = 4, 64  # heads, and elements of a head


@dataclass(frozen=True, kw_only=True)
class TimingConfig:
    """What is timed. The default is nothing, and costs nothing."""

    documents: tuple[int, ...] = ()  # per pack, ascending: the workloads of the segment slope
    unpacked: bool = False  # time the step's documents as packed by the data path, and one per row
    full_rows: bool = setting(
        False, doc="Time rows of one document of full length, to compare packed rows with.", later=True
    )
    rounds: int = ROUNDS
    warmup: int = setting(0, doc="Rounds before those that are recorded; 0: as WARMUP says.", later=True)
    tokens: int = setting(0, doc="About, of a pack of the slope; 0: ROTARY_TOKENS and STEP_TOKENS.", later=True)
    turns: str = ""  # name of the pair of cells whose steps are interleaved, one in each of two stacks
    first: bool = False  # of that pair, the one that starts

    @property
    def asked(self) -> bool:
        return self.alone or bool(self.turns)

    @property
    def alone(self) -> bool:
        """Whether anything is timed without another cell."""
        return bool(self.documents) or self.unpacked or self.full_rows

    def warmup_on(self, device: str) -> int:
        """Rounds that warm up on a kind of device, "cpu" or "cuda"; at least one."""
        return self.warmup or WARMUP[device]


NOT_TIMED = TimingConfig()


@dataclass(kw_only=True)
class Timed:
    """One workload in one round on one rank.

    | workload | passes |
    |---|---|
    | rotary | the stack's rotary function alone, over packs of `documents` |
    | rotary_other | the same, fused if `rotary` is not, and vice versa |
    | step | forward and backward of the whole model, over packs of `documents` |
    | packed, unpacked | forward and backward over the documents of step 0; `documents` is 0 |
    | full | the same over as many rows of one document of full length |
    | turn | the step as the data path passes it, while the other stack waits |
    """

    load: str
    documents: int
    round: int
    seconds: float  # of the processor on a CPU, where other processes share it; between two CUDA events on a GPU


Moment = Literal["before", "under load", "after"]  # of the timing leg


@dataclass(kw_only=True)
class GpuState:
    """What the driver reported about a rank's GPU at one moment; a value that it did not report is None."""

    when: Moment
    sm_clock_mhz: int | None = None
    memory_clock_mhz: int | None = None
    power_w: float | None = None
    power_limit_w: float | None = None
    temperature_c: int | None = None
    slowed_by: list[str] | None = None  # reasons for lower clocks at that moment
    missing: str = ""  # why fields are None


def step_tokens(timing: TimingConfig, layout: Layout) -> int:
    """Tokens of a pack in the `step` loads."""
    return _near(timing.tokens or STEP_TOKENS, timing.documents[-1] * layout.alignment)


def rotary_tokens(timing: TimingConfig, layout: Layout) -> int:
    """Tokens of a call in the `rotary` loads."""
    return _near(timing.tokens or ROTARY_TOKENS, timing.documents[-1] * layout.alignment)


def _near(tokens: int, unit: int) -> int:
    """The multiple of `unit` next to `tokens`: `documents` of equal, aligned lengths fill it."""
    return unit * max(round(tokens / unit), 1)
