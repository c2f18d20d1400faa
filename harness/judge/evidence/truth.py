"""What ranks must receive according to a cell's configuration, and packed params paired with it."""

from __future__ import annotations

from dataclasses import dataclass

from harness.core.packing.arithmetic import MicroBatch, PackedParams
from harness.core.run.records import SeenParams
from harness.judge.locations import RankLocation


@dataclass(frozen=True, kw_only=True)
class Truth:
    """The packed params and tokens that every rank of a replica must receive for one micro-batch."""

    batch: MicroBatch
    params: PackedParams | None


@dataclass(frozen=True, kw_only=True)
class DocumentPosition:
    """Where a document is packed in one step of a cell."""

    dp: int
    micro_batch: int
    first: bool  # no document precedes it in its row, so nothing can leak into it
    truncated: bool


@dataclass(frozen=True, kw_only=True)
class ParamsSeen:
    """Packed params, and all locations that saw exactly these for one packed micro-batch."""

    params: SeenParams
    device: str | None
    truth: Truth
    expected: PackedParams
    places: list[RankLocation]
