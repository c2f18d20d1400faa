"""The true fields of a batch, for faults that deliver fields of other slots or micro-batches."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from harness.core.packing.fields import BATCH
from harness.node.data_paths.base import Batch, RankContext
from harness.node.probe.truth import MicroTruth


def at_slots(batch: Batch, truth: MicroTruth, slots: Sequence[int]) -> dict[str, Tensor]:
    """The fields that the batch has, taken from other slots of the merged row: [1, len(slots)] each."""
    chosen = torch.tensor(slots)
    return {name: _as(batch, name, getattr(truth, name)[chosen][None]) for name in BATCH if has(batch, name)}


def own_fields(batch: Batch, truth: MicroTruth, context: RankContext) -> dict[str, Tensor]:
    """The fields that the batch has, taken from another micro-batch: [rows, local slots] each."""
    return {name: local(batch, name, truth, context) for name in BATCH if has(batch, name)}


def local(batch: Batch, name: str, truth: MicroTruth, context: RankContext, stream: Tensor | None = None) -> Tensor:
    """This rank's slots of one field: [rows, local slots]. `stream` [slots] replaces the true values."""
    whole: Tensor = getattr(truth, name) if stream is None else stream
    return _as(batch, name, truth.local(whole, context.config.layout.cp, context.place.cp))


def has(batch: Batch, name: str) -> bool:
    return getattr(batch, name) is not None


def _as(batch: Batch, name: str, value: Tensor) -> Tensor:
    old: Tensor = getattr(batch, name)
    return value.to(old.device, old.dtype)
