"""Compares a micro-batch, as a model chunk gets it, with the packing plan."""

from __future__ import annotations

import torch
from torch import Tensor

from harness.core.packing.arithmetic import PAD
from harness.core.packing.fields import PADDING_MASK
from harness.core.run.records import BatchSeen, TensorSeen
from harness.node.data_paths.base import Batch, RankContext
from harness.node.probe.truth import StepTruth, first_difference
from harness.node.recording.recorder import Recorder


def batch_seen(
    batch: Batch, truth: StepTruth, context: RankContext, recorder: Recorder, chunk: int, number: int
) -> BatchSeen:
    """The record of micro-batch `number` of this rank; its packed params go into the record's table."""
    micro = truth.micro_batches[number]
    cp, cp_rank = context.config.layout.cp, context.place.cp
    owners = micro.local(micro.owners, cp, cp_rank)

    def counted(name: str) -> Tensor:
        """The slots compared: for labels the unmasked ones, for masks all, for other fields those with tokens."""
        if name in ("loss_mask", PADDING_MASK):
            return torch.ones(owners.shape[:-1], dtype=torch.bool)
        return micro.local(micro.loss_mask, cp, cp_rank) > 0 if name == "labels" else owners[..., 0] != PAD

    def against(name: str) -> TensorSeen | None:
        found: Tensor | None = getattr(batch, name)
        if found is None:
            return None
        expected = micro.local(getattr(micro, name), cp, cp_rank)
        shape, dtype = list(found.shape), str(found.dtype)
        if name == "position_ids" and found.dim() == 3:
            found = found.permute(1, 2, 0)
        if found.shape != expected.shape:
            return TensorSeen(shape=shape, dtype=dtype, mismatches=expected.numel())
        count, first = first_difference(found.cpu(), expected, owners, counted(name))
        return TensorSeen(shape=shape, dtype=dtype, mismatches=count, first=first)

    recorder.not_read(batch.not_read)
    return BatchSeen(
        step=truth.step,
        chunk=chunk,
        micro_batch=number,
        params=recorder.params(batch.params),
        tokens=against("tokens"),
        labels=against("labels"),
        loss_mask=against("loss_mask"),
        position_ids=against("position_ids"),
        padding_mask=against(PADDING_MASK),
    )
