"""What the timing leg of a cell measures, and the samples that it leaves.

The leg runs its loads in turn, round after round, each round in the other direction: so loads are compared pair by
pair, each with its neighbour in time, and a machine that slows down does not favour one of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from harness.core.cell.layout import Layout
from harness.core.setting import setting

DOCUMENTS = (4, 16, 64, 256)  # per pack, of the segment slope
ROUNDS = 7  # the fewest in which a one-sided sign test can reach 1 %: 1 / 2^7
# Rounds before those that are recorded: on a GPU kernels are loaded and tuned, and the allocator grows, in several.
WARMUP: Mapping[str, int] = {"cpu": 1, "cuda": 3}
ROTARY_TOKENS = 4096  # about, of one call of the rotary function, over all context ranks
STEP_TOKENS = 1024  # about, of one pack that goes through the model
ROTARY_HEADS, ROTARY_SIZE = 4, 64  # heads, and elements of a head


@dataclass(frozen=True, kw_only=True)
class TimingConfig:
    """What is timed. The default is nothing, and costs nothing."""

    documents: tuple[int, ...] = ()  # per pack, ascending: the loads of the segment slope
    unpacked: bool = False  # the step's documents as the data path packs them, and one per row
    full_rows: bool = setting(
        False, doc="Rows of one document of full length, to hold packed rows against.", later=True
    )
    rounds: int = ROUNDS
    warmup: int = setting(0, doc="Rounds before those that are recorded; 0: as WARMUP says.", later=True)
    tokens: int = setting(0, doc="About, of a pack of the slope; 0: ROTARY_TOKENS and STEP_TOKENS.", later=True)
    turns: str = ""  # name of the pair of cells that take turns, one in each of two stacks
    first: bool = False  # of that pair, the one whose turn is the first

    @property
    def asked(self) -> bool:
        return self.alone or bool(self.turns)

    @property
    def alone(self) -> bool:
        """Whether anything is timed that needs no other cell."""
        return bool(self.documents) or self.unpacked or self.full_rows

    def warmup_on(self, device: str) -> int:
        """Rounds that warm up on a kind of device, "cpu" or "cuda"; at least one."""
        return self.warmup or WARMUP[device]


NOT_TIMED = TimingConfig()


@dataclass(kw_only=True)
class Timed:
    """One load in one round on one rank.

    Loads: `rotary` (the stack's function alone), `rotary_other` (the same, fused if that is not, and the other way
    round), `step` (forward and backward of the whole model), all over packs of `documents`; `packed` and `unpacked`
    (forward and backward over the documents of step 0, `documents` is 0), `full` (likewise, over as many rows of one
    document of full length), `turn` (as the data path hands them out, while the other stack waits).
    """

    load: str
    documents: int
    round: int
    seconds: float  # of the processor on a CPU, where other processes share it; between two CUDA events on a GPU


@dataclass(kw_only=True)
class GpuState:
    """What the driver told of a rank's GPU at one moment; what it did not tell is None."""

    when: str  # before | under load | after the timing leg
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
    """The multiple of `unit` next to `tokens`: most documents of equal, aligned lengths fill it, and fewer do too."""
    return unit * max(round(tokens / unit), 1)
