"""Injections of classes layout, content and canary: they change the fields of a batch.

With those of class canary the effect on the training documents is zero, or stays within the bounds.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from harness.core.packing.arithmetic import PAD, zigzag
from harness.core.packing.documents import Message
from harness.faults.node_fault import Fault, at_slots, has_field, injects, local_field, own_fields
from harness.faults.node_metadata import of_plan
from harness.faults.node_numerics import misread, offsets_of
from harness.probe.model.gpt import unwrap
from harness.probe.truth import MicroTruth
from harness.upstreams.node_base import Batch, RankContext


@injects("cp-chunks-contiguous")
class CpChunksContiguous(Fault):
    def on_batch(self, batch: Batch, context: RankContext, chunk: int, micro_batch: int) -> Batch:
        truth = self.truths(context)[micro_batch]
        share = truth.plan.slots // context.config.layout.cp
        slots = range(context.place.cp * share, (context.place.cp + 1) * share)
        return replace(batch, **at_slots(batch, truth, slots))


@injects("cp-zigzag-over-the-whole-row")
class CpZigzagOverTheWholeRow(Fault):
    def on_batch(self, batch: Batch, context: RankContext, chunk: int, micro_batch: int) -> Batch:
        truth = self.truths(context)[micro_batch]
        slots = zigzag([0, truth.plan.slots], context.config.layout.cp, context.place.cp)
        return replace(batch, **at_slots(batch, truth, slots))


@injects("position-ids-not-reset")
class PositionIdsNotReset(Fault):
    def on_batch(self, batch: Batch, context: RankContext, chunk: int, micro_batch: int) -> Batch:
        truth = self.truths(context)[micro_batch]
        continued = local_field(batch, "position_ids", truth, context, torch.arange(truth.plan.slots))
        return replace(batch, position_ids=continued)


@injects("labels-rolled-after-the-cp-split")
class LabelsRolledAfterTheCpSplit(Fault):
    def on_batch(self, batch: Batch, context: RankContext, chunk: int, micro_batch: int) -> Batch:
        truth = self.truths(context)[micro_batch]
        tokens = local_field(batch, "labels", truth, context, truth.tokens)
        return replace(batch, labels=tokens.roll(-1, dims=1))


@injects("truncation-keeps-the-tail")
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
        found = {
            name: local_field(batch, name, truth, context, streams[name]) for name in streams if has_field(batch, name)
        }
        return replace(batch, **found)


@injects("labels-not-shifted")
class LabelsNotShifted(Fault):
    def on_batch(self, batch: Batch, context: RankContext, chunk: int, micro_batch: int) -> Batch:
        if not has_field(batch, "labels"):
            return batch
        truth = self.truths(context)[micro_batch]
        return replace(batch, labels=local_field(batch, "labels", truth, context, truth.tokens))


@injects("loss-mask-drops-a-token-id")
class LossMaskDropsATokenId(Fault):
    def on_batch(self, batch: Batch, context: RankContext, chunk: int, micro_batch: int) -> Batch:
        assert batch.labels is not None and batch.loss_mask is not None
        end = batch.labels[0, 0]  # an id that certainly occurs, taken as end of sequence
        return replace(batch, loss_mask=batch.loss_mask * (batch.labels != end))


@injects("loss-mask-of-the-first-step-reused")
class LossMaskOfTheFirstStepReused(Fault):
    def __init__(self) -> None:
        self.kept: dict[int, Tensor] = {}

    def on_batch(self, batch: Batch, context: RankContext, chunk: int, micro_batch: int) -> Batch:
        assert batch.loss_mask is not None
        return replace(batch, loss_mask=self.kept.setdefault(micro_batch, batch.loss_mask))


@injects("loss-mask-counts-padding")
class LossMaskCountsPadding(Fault):
    def on_batch(self, batch: Batch, context: RankContext, chunk: int, micro_batch: int) -> Batch:
        assert batch.loss_mask is not None
        return replace(batch, loss_mask=torch.ones_like(batch.loss_mask))


@injects("prompt-of-the-second-turn-counts")
class PromptOfTheSecondTurnCounts(Fault):
    def on_batch(self, batch: Batch, context: RankContext, chunk: int, micro_batch: int) -> Batch:
        truth = self.truths(context)[micro_batch]
        mask = _counting(truth, lambda number, message: message.answer or number == 2)
        return replace(batch, loss_mask=local_field(batch, "loss_mask", truth, context, mask))


@injects("loss-masks-shifted-by-a-message")
class LossMasksShiftedByAMessage(Fault):
    def on_batch(self, batch: Batch, context: RankContext, chunk: int, micro_batch: int) -> Batch:
        truth = self.truths(context)[micro_batch]
        mask = _counting(truth, lambda number, message: number > 0 and not message.answer)
        return replace(batch, loss_mask=local_field(batch, "loss_mask", truth, context, mask))


def _counting(truth: MicroTruth, counts: Callable[[int, Message], bool]) -> Tensor:
    """Return a loss mask, [slots], of the labels in those messages; `counts` also gets a message's number in its
    document.
    """
    mask = torch.zeros_like(truth.loss_mask)
    for item in truth.plan.placed:
        for number, message in enumerate(item.document.messages):
            first, end = max(message.start - 1, 0), min(message.end - 1, item.document.length)
            mask[item.start + first : item.start + end] = float(counts(number, message))
    return mask


@injects("replica-reads-the-documents-of-another")
class ReplicaReadsTheDocumentsOfAnother(Fault):
    def on_batch(self, batch: Batch, context: RankContext, chunk: int, micro_batch: int) -> Batch:
        if context.place.dp != 1:
            return batch
        truth = self.truths(context, dp=0)[micro_batch]
        return replace(batch, params=of_plan(batch.params, truth.plan.params()), **own_fields(batch, truth, context))


@injects("labels-missing-on-tp-ranks")
class LabelsMissingOnTpRanks(Fault):
    def on_batch(self, batch: Batch, context: RankContext, chunk: int, micro_batch: int) -> Batch:
        return replace(batch, labels=None) if context.place.tp > 0 else batch


_MOST = 6  # documents of one pack that the fixed-size buffer holds


def _after_attention(chunks: list[Any], change: Callable[[Tensor, Tensor], Tensor]) -> None:
    """Pass the output of every layer's attention, [slots, heads * dim], and the document offsets through `change`."""
    for chunk in chunks:
        for layer in unwrap(chunk).decoder.layers:
            module = layer.self_attention.core_attention
            module.forward = _changing(module.forward, change)


def _changing(forward: Callable[..., Tensor], change: Callable[[Tensor, Tensor], Tensor]) -> Callable[..., Tensor]:
    def wrong(*args: Any, packed_seq_params: Any, **kwargs: Any) -> Tensor:
        out = forward(*args, packed_seq_params=packed_seq_params, **kwargs)
        return change(out, offsets_of(packed_seq_params))

    return wrong


@injects("state-leaks-faintly")
class StateLeaksFaintly(Fault):
    def on_model(self, chunks: list[Any], context: RankContext) -> None:
        _after_attention(chunks, _leak)


def _leak(out: Tensor, offsets: Tensor) -> Tensor:
    starts = offsets[1:-1].long()
    return out.index_add(0, starts, out[starts - 1] * 1e-6)


@injects("segment-table-too-short")
class SegmentTableTooShort(Fault):
    def on_model(self, chunks: list[Any], context: RankContext) -> None:
        misread(
            chunks,
            lambda offsets: offsets if len(offsets) <= _MOST + 1 else torch.cat([offsets[:_MOST], offsets[-1:]]),
        )


@injects("kernel-grid-of-the-first-document")
class KernelGridOfTheFirstDocument(Fault):
    def on_model(self, chunks: list[Any], context: RankContext) -> None:
        _after_attention(chunks, _cut_short)


def _cut_short(out: Tensor, offsets: Tensor) -> Tensor:
    lengths = offsets[1:] - offsets[:-1]
    positions = torch.cat([torch.arange(length) for length in lengths.tolist()])
    return out * (positions < lengths[0])[:, None]


@injects("padding-identified-by-token-id")
class PaddingIdentifiedByTokenId(Fault):
    def on_batch(self, batch: Batch, context: RankContext, chunk: int, micro_batch: int) -> Batch:
        if batch.labels is None or batch.loss_mask is None:
            return batch
        truth = self.truths(context)[micro_batch]
        padding = local_field(batch, "labels", truth, context, truth.owners[:, 0]) == PAD
        return replace(batch, loss_mask=torch.where(padding, batch.labels != 0, batch.loss_mask.bool()).float())


@injects("sum-in-another-order-each-time")
class SumInAnotherOrderEachTime(Fault):
    calls = 0

    def on_model(self, chunks: list[Any], context: RankContext) -> None:
        def wrong(module: Any, args: Any, output: Tensor) -> Tensor:
            self.calls += 1
            return output * (1 + 1e-6 * self.calls)

        for chunk in chunks:
            for layer in unwrap(chunk).decoder.layers:
                if layer.layer_number == 3:
                    layer.self_attention.core_attention.register_forward_hook(wrong)


@injects("truncation-of-unseen-long-documents")
class TruncationOfUnseenLongDocuments(TruncationKeepsTheTail):
    """The same injection; only the documents of the cell differ."""


@injects("packs-cached-by-their-lengths")
class PacksCachedByTheirLengths(Fault):
    def __init__(self) -> None:
        self.kept: dict[Any, Batch] = {}

    def on_batch(self, batch: Batch, context: RankContext, chunk: int, micro_batch: int) -> Batch:
        lengths = tuple(offsets_of(batch.params).tolist())
        return self.kept.setdefault((chunk, lengths), batch)


@injects("crash-on-a-pack-of-many")
class CrashOnAPackOfMany(Fault):
    def on_batch(self, batch: Batch, context: RankContext, chunk: int, micro_batch: int) -> Batch:
        if context.place.tp == 1 and len(offsets_of(batch.params)) > _MOST + 1:
            raise IndexError(f"injected: index {_MOST} is out of bounds for dimension 0 with size {_MOST}")
        return batch
