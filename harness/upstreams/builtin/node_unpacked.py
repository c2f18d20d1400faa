"""One document per row, padded to seq_length, no packing. Every rank slices its own part; nothing is sent."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch import Tensor

from harness.core.cell.config import CellConfig
from harness.probe.truth import MicroTruth, StepTruth
from harness.upstreams.node_base import Batch, RankContext
from harness.upstreams.node_lookup import Unavailable


class UnpackedPath:
    """Give each document a row of its own, without packing."""

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
        if self.context.reads_labels(chunk):
            batch.labels = micro.local(micro.labels, cp, cp_rank).to(device)
            batch.loss_mask = micro.local(micro.loss_mask, cp, cp_rank).to(device)
        if self.context.config.model.vision:
            batch.position_ids = micro.local(micro.position_ids, cp, cp_rank).permute(2, 0, 1).to(device)
            batch.whole = self._whole(micro, chunk)
        if self.context.config.model.padding_mask:
            batch.padding_mask = micro.local(micro.padding_mask, cp, cp_rank).to(device)
        return batch

    def _whole(self, micro: MicroTruth, chunk: int) -> dict[str, Any]:
        """Return the arguments of a model with vision: whole rows, which it splits over cp, and the harness's
        positions.
        """
        device = self.context.device.torch_device
        last = self.context.is_last(chunk)

        def rows(stream: Tensor) -> Tensor:
            return micro.local(stream, 1, 0).to(device)

        return {
            "input_ids": rows(micro.tokens),
            "position_ids": rows(micro.position_ids).permute(2, 0, 1),
            "labels": rows(micro.labels) if last else None,
            "loss_mask": rows(micro.loss_mask) if last else None,
            "pixel_values": None if micro.pixels is None else micro.pixels.to(device),
            "image_grid_thw": None if micro.grids is None else micro.grids.to(device),
        }
