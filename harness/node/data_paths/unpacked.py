"""One document per row, padded to seq_length, no packing. Every rank slices its own part; nothing is sent."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from harness.core.cell.config import CellConfig
from harness.node.data_paths.base import Batch, RankContext
from harness.node.data_paths.lookup import Unavailable
from harness.node.probe.truth import MicroTruth, StepTruth


class UnpackedPath:
    def __init__(self, context: RankContext) -> None:
        self.context = context

    @staticmethod
    def unavailable(config: CellConfig) -> Unavailable:
        return None

    def iterator(self, truth: StepTruth, chunk: int) -> Iterator[MicroTruth] | None:
        return iter(truth.micro_batches)

    def fetch(self, iterator: Iterator[Any] | None, chunk: int) -> Batch:
        assert iterator is not None
        micro: MicroTruth = next(iterator)
        cp, cp_rank = self.context.config.layout.cp, self.context.place.cp
        device = self.context.device.torch_device
        batch = Batch()
        if self.context.reads_tokens(chunk):
            batch.tokens = micro.local(micro.tokens, cp, cp_rank).to(device)
            batch.position_ids = micro.local(micro.position_ids, cp, cp_rank).to(device)
        if self.context.is_last(chunk):
            batch.labels = micro.local(micro.labels, cp, cp_rank).to(device)
            batch.loss_mask = micro.local(micro.loss_mask, cp, cp_rank).to(device)
        if self.context.config.model.padding_mask:
            batch.padding_mask = micro.local(micro.padding_mask, cp, cp_rank).to(device)
        return batch
