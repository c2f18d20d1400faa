"""What the adapter of a data path gives the probe. Each data path has one, which calls its upstream code."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from torch import Tensor

from harness.core.cell.config import CellConfig
from harness.core.cell.layout import Coordinates
from harness.node.data_paths.lookup import Lack
from harness.node.device.placement import Device
from harness.node.probe.truth import StepTruth


@dataclass(kw_only=True)
class Batch:
    """One micro-batch as a rank's model chunk gets it: int64 [rows, local slots], loss_mask float32.

    Fields that a stage does not need are None. `params` is megatron.core.packed_seq_params.PackedSeqParams.
    """

    tokens: Tensor | None = None
    labels: Tensor | None = None
    loss_mask: Tensor | None = None
    position_ids: Tensor | None = None
    params: Any = None
    padding_mask: Tensor | None = None  # bool, true where a slot holds no token; for routers with an auxiliary loss


@dataclass(frozen=True, kw_only=True)
class RankContext:
    """A rank, its coordinates and its device."""

    config: CellConfig
    place: Coordinates
    device: Device
    folder: Path = Path()  # of the attempt: shared by all ranks, kept with the run

    @property
    def is_rank_zero(self) -> bool:
        return self.place == Coordinates(tp=0, cp=0, dp=0, pp=0)

    def is_first(self, chunk: int) -> bool:
        """Whether the chunk holds the embedding."""
        return self.place.pp == 0 and chunk == 0

    def is_last(self, chunk: int) -> bool:
        """Whether the chunk holds the output layer and the loss."""
        layout = self.config.layout
        return self.place.pp == layout.pp - 1 and chunk == layout.vpp - 1

    def reads_tokens(self, chunk: int) -> bool:
        """Whether the chunk embeds tokens: the first, and with multi-token prediction the last too."""
        return self.is_first(chunk) or (self.config.model.mtp is not None and self.is_last(chunk))


class Adapter(Protocol):
    """Feeds one rank. `iterator` is called once per step and chunk, `fetch` once per micro-batch, in order.

    A path that counts the work of a step stores it as `workload` (core/packing/workload.py) when chunk 0 asks for its
    iterator.
    """

    def __init__(self, context: RankContext) -> None: ...

    @staticmethod
    def unavailable(config: CellConfig) -> Lack:
        """Why the software under test cannot serve this cell by this path; None when it can."""
        ...

    def iterator(self, truth: StepTruth, chunk: int) -> Iterator[Any] | None:
        """What the schedule hands to `fetch`; None on ranks that read nothing."""
        ...

    def fetch(self, iterator: Iterator[Any] | None, chunk: int) -> Batch:
        """The next micro-batch; may communicate within the tensor-parallel group."""
        ...
