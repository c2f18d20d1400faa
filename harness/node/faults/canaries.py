"""Injections of class canary: faults whose effect on the training documents is zero or stays within the bounds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from harness.core.packing.arithmetic import PAD
from harness.node.data_paths.base import Batch, RankContext
from harness.node.faults.attention import misread, offsets_of
from harness.node.faults.content import TruncationKeepsTheTail
from harness.node.faults.fault import Fault
from harness.node.faults.truths import local
from harness.node.probe.model.gpt import unwrap

MOST = 6  # documents of one pack that the fixed-size buffer holds


def _after_attention(chunks: list[Any], change: Callable[[Tensor, Tensor], Tensor]) -> None:
    """Pass the output of every layer's attention, [slots, heads * dim], and the document offsets through `change`."""
    for chunk in chunks:
        for layer in unwrap(chunk).decoder.layers:
            module = layer.self_attention.core_attention
            module.forward = _changed(module.forward, change)


def _changed(forward: Callable[..., Tensor], change: Callable[[Tensor, Tensor], Tensor]) -> Callable[..., Tensor]:
    def wrong(*args: Any, packed_seq_params: Any, **kwargs: Any) -> Tensor:
        out = forward(*args, packed_seq_params=packed_seq_params, **kwargs)
        return change(out, offsets_of(packed_seq_params))

    return wrong


class StateLeaksFaintly(Fault):
    def on_model(self, chunks: list[Any], context: RankContext) -> None:
        _after_attention(chunks, _leak)


def _leak(out: Tensor, offsets: Tensor) -> Tensor:
    starts = offsets[1:-1].long()
    return out.index_add(0, starts, out[starts - 1] * 1e-6)


class SegmentTableTooShort(Fault):
    def on_model(self, chunks: list[Any], context: RankContext) -> None:
        misread(
            chunks, lambda offsets: offsets if len(offsets) <= MOST + 1 else torch.cat([offsets[:MOST], offsets[-1:]])
        )


class KernelGridOfTheFirstDocument(Fault):
    def on_model(self, chunks: list[Any], context: RankContext) -> None:
        _after_attention(chunks, _cut_short)


def _cut_short(out: Tensor, offsets: Tensor) -> Tensor:
    lengths = offsets[1:] - offsets[:-1]
    positions = torch.cat([torch.arange(length) for length in lengths.tolist()])
    return out * (positions < lengths[0])[:, None]


class PaddingIdentifiedByTokenId(Fault):
    def on_batch(self, batch: Batch, context: RankContext, chunk: int, micro_batch: int) -> Batch:
        if batch.labels is None or batch.loss_mask is None:
            return batch
        truth = self.truths(context)[micro_batch]
        padding = local(batch, "labels", truth, context, truth.owners[:, 0]) == PAD
        return replace(batch, loss_mask=torch.where(padding, batch.labels != 0, batch.loss_mask.bool()).float())


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


class TruncationOfUnseenLongDocuments(TruncationKeepsTheTail):
    """The same injection; only the documents of the cell differ."""


class PacksCachedByTheirLengths(Fault):
    def __init__(self) -> None:
        self.kept: dict[Any, Batch] = {}

    def on_batch(self, batch: Batch, context: RankContext, chunk: int, micro_batch: int) -> Batch:
        lengths = tuple(offsets_of(batch.params).tolist())
        return self.kept.setdefault((chunk, lengths), batch)


class CrashOnAPackOfMany(Fault):
    def on_batch(self, batch: Batch, context: RankContext, chunk: int, micro_batch: int) -> Batch:
        if context.place.tp == 1 and len(offsets_of(batch.params)) > MOST + 1:
            raise IndexError(f"injected: index {MOST} is out of bounds for dimension 0 with size {MOST}")
        return batch
