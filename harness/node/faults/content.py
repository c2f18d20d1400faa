"""Injections of classes layout and content: they change tokens, labels, masks or positions of a batch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from harness.core.packing.arithmetic import zigzag
from harness.core.packing.documents import Message
from harness.node.data_paths.base import Batch, RankContext
from harness.node.faults.fault import Fault
from harness.node.faults.metadata import of_plan
from harness.node.faults.truths import at_slots, has, local, own_fields
from harness.node.probe.truth import MicroTruth


class CpChunksContiguous(Fault):
    def on_batch(self, batch: Batch, context: RankContext, chunk: int, micro_batch: int) -> Batch:
        truth = self.truths(context)[micro_batch]
        share = truth.plan.slots // context.config.layout.cp
        slots = range(context.place.cp * share, (context.place.cp + 1) * share)
        return replace(batch, **at_slots(batch, truth, slots))


class CpZigzagOverTheWholeRow(Fault):
    def on_batch(self, batch: Batch, context: RankContext, chunk: int, micro_batch: int) -> Batch:
        truth = self.truths(context)[micro_batch]
        slots = zigzag([0, truth.plan.slots], context.config.layout.cp, context.place.cp)
        return replace(batch, **at_slots(batch, truth, slots))


class PositionIdsNotReset(Fault):
    def on_batch(self, batch: Batch, context: RankContext, chunk: int, micro_batch: int) -> Batch:
        truth = self.truths(context)[micro_batch]
        continued = local(batch, "position_ids", truth, context, torch.arange(truth.plan.slots))
        return replace(batch, position_ids=continued)


class LabelsRolledAfterTheCpSplit(Fault):
    def on_batch(self, batch: Batch, context: RankContext, chunk: int, micro_batch: int) -> Batch:
        truth = self.truths(context)[micro_batch]
        tokens = local(batch, "labels", truth, context, truth.tokens)
        return replace(batch, labels=tokens.roll(-1, dims=1))


class TruncationKeepsTheTail(Fault):
    def on_batch(self, batch: Batch, context: RankContext, chunk: int, micro_batch: int) -> Batch:
        truth = self.truths(context)[micro_batch]
        tokens, labels = truth.tokens.clone(), truth.labels.clone()
        for item in truth.plan.placed:
            document = item.document
            if document.original_length > document.length:
                whole = self.truth(context).content(document)
                tail = whole[-(document.length + 1) :]
                real = slice(item.start, item.start + document.length)
                tokens[real], labels[real] = tail[:-1], tail[1:]
        streams = {"tokens": tokens, "labels": labels}
        found = {name: local(batch, name, truth, context, streams[name]) for name in streams if has(batch, name)}
        return replace(batch, **found)


class LabelsNotShifted(Fault):
    def on_batch(self, batch: Batch, context: RankContext, chunk: int, micro_batch: int) -> Batch:
        if not has(batch, "labels"):
            return batch
        truth = self.truths(context)[micro_batch]
        return replace(batch, labels=local(batch, "labels", truth, context, truth.tokens))


class LossMaskDropsATokenId(Fault):
    def on_batch(self, batch: Batch, context: RankContext, chunk: int, micro_batch: int) -> Batch:
        assert batch.labels is not None and batch.loss_mask is not None
        end = batch.labels[0, 0]  # an id that certainly occurs, taken as end of sequence
        return replace(batch, loss_mask=batch.loss_mask * (batch.labels != end))


class LossMaskOfTheFirstStepReused(Fault):
    def __init__(self) -> None:
        self.kept: dict[int, Tensor] = {}

    def on_batch(self, batch: Batch, context: RankContext, chunk: int, micro_batch: int) -> Batch:
        assert batch.loss_mask is not None
        return replace(batch, loss_mask=self.kept.setdefault(micro_batch, batch.loss_mask))


class LossMaskCountsPadding(Fault):
    def on_batch(self, batch: Batch, context: RankContext, chunk: int, micro_batch: int) -> Batch:
        assert batch.loss_mask is not None
        return replace(batch, loss_mask=torch.ones_like(batch.loss_mask))


class PromptOfTheSecondTurnCounts(Fault):
    def on_batch(self, batch: Batch, context: RankContext, chunk: int, micro_batch: int) -> Batch:
        truth = self.truths(context)[micro_batch]
        mask = _counting(truth, lambda number, message: message.answer or number == 2)
        return replace(batch, loss_mask=local(batch, "loss_mask", truth, context, mask))


class LossMasksShiftedByAMessage(Fault):
    def on_batch(self, batch: Batch, context: RankContext, chunk: int, micro_batch: int) -> Batch:
        truth = self.truths(context)[micro_batch]
        mask = _counting(truth, lambda number, message: number > 0 and not message.answer)
        return replace(batch, loss_mask=local(batch, "loss_mask", truth, context, mask))


def _counting(truth: MicroTruth, counts: Callable[[int, Message], bool]) -> Tensor:
    """A loss mask, [slots], of the labels in those messages; `counts` also gets a message's number in its document."""
    mask = torch.zeros_like(truth.loss_mask)
    for item in truth.plan.placed:
        for number, message in enumerate(item.document.messages):
            first, end = max(message.start - 1, 0), min(message.end - 1, item.document.length)
            mask[item.start + first : item.start + end] = float(counts(number, message))
    return mask


class ReplicaReadsTheDocumentsOfAnother(Fault):
    def on_batch(self, batch: Batch, context: RankContext, chunk: int, micro_batch: int) -> Batch:
        if context.place.dp != 1:
            return batch
        truth = self.truths(context, dp=0)[micro_batch]
        return replace(batch, params=of_plan(batch.params, truth.plan.params()), **own_fields(batch, truth, context))


class LabelsMissingOnTpRanks(Fault):
    def on_batch(self, batch: Batch, context: RankContext, chunk: int, micro_batch: int) -> Batch:
        return replace(batch, labels=None) if context.place.tp > 0 else batch
