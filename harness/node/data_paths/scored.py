"""Values that upstream's loss has by document, at the slots for which they were computed."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from harness.node.data_paths.base import RankContext
from harness.node.probe.truth import MicroTruth


def rows_by_slot(rows: Sequence[Tensor], micro: MicroTruth, context: RankContext) -> Tensor:
    """[1, local slots] float32 of this rank. `rows`: one per document, in order, its labels first; 0 elsewhere."""
    stream = torch.zeros(micro.plan.slots, device=context.device.torch_device)
    for row, item in zip(rows, micro.plan.placed, strict=True):
        values = row[: item.document.length].float()
        stream[item.start : item.start + len(values)] = values
    return micro.local(stream, context.config.layout.cp, context.place.cp)
