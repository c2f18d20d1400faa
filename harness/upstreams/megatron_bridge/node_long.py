"""Megatron-Bridge without packing, for long documents split over context-parallel ranks (releases 0.4 to 0.6).

gpt_step takes whole rows from the iterator and splits them with megatron.core.utils.get_batch_on_this_cp_rank. Every
rank reads; stages without embedding or loss get nothing, which is right when nothing is packed.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch import Tensor

from harness.core.cell.config import CellConfig
from harness.core.packing.fields import BATCH
from harness.probe.truth import MicroTruth, StepTruth
from harness.upstreams.megatron_bridge.node_step import BridgeStep, dataset_config, missing
from harness.upstreams.node_base import Batch, RankContext
from harness.upstreams.node_lookup import Unavailable


class BridgeLongPath:
    """Split unpacked rows over context-parallel ranks by upstream's gpt_step."""

    def __init__(self, context: RankContext) -> None:
        self.context = context
        self.step = BridgeStep(context, dataset_config(context.config, str(context.folder)))

    @staticmethod
    def unavailable(config: CellConfig) -> Unavailable:
        return missing("training.gpt_step", "training.config")

    def iterator(self, truth: StepTruth, chunk: int) -> Iterator[dict[str, Tensor | None]]:
        return (self._rows(micro) for micro in truth.micro_batches)

    def fetch(self, iterator: Iterator[Any] | None, chunk: int) -> Batch:
        return self.step.batch(iterator, chunk)

    def _rows(self, micro: MicroTruth) -> dict[str, Tensor | None]:
        """Return the fields as [rows, seq_length]; attention makes its causal mask itself."""
        width = self.context.config.train.seq_length
        batch: dict[str, Tensor | None] = {name: getattr(micro, name).view(-1, width) for name in BATCH}
        return batch | {"attention_mask": None}
