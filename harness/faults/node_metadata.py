"""Injections of class metadata: they change the packed params of a batch from the data path."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import torch
from megatron.core.transformer.enums import AttnMaskType
from torch import Tensor

from harness.core.packing.arithmetic import MicroBatch, PackedParams, Workload
from harness.core.packing.fields import OFFSETS, PADDED
from harness.faults.node_fault import Fault, injects, own_fields
from harness.features.recompute.node_recompute import recomputing
from harness.probe.model.gpt import unwrap
from harness.upstreams.node_base import Batch, RankContext

GARBAGE = -383836992  # an uninitialised max_seqlen, as seen with Megatron-LM 9a7cd17fdc


def changed(params: Any, **fields: Any) -> Any:
    """Return a copy of PackedSeqParams with some fields replaced; fields that upstream derived from them are kept."""
    other = copy.copy(params)
    for name, value in fields.items():
        setattr(other, name, value)
    return other


def with_offsets(params: Any, offsets: Tensor) -> Any:
    """Return a copy with all offsets replaced; padded offsets only if they are set."""
    names = OFFSETS + tuple(name for name in PADDED if getattr(params, name) is not None)
    return changed(params, **dict.fromkeys(names, offsets))


def of_plan(params: Any, plan: PackedParams | None) -> Any:
    """Return the params of another packing plan, with dtype and device of `params`."""
    assert plan is not None
    like = params.cu_seqlens_q
    fields = {
        name: None if value is None else torch.tensor(value, dtype=like.dtype, device=like.device)
        for name, value in ((name, getattr(plan, name)) for name in OFFSETS + PADDED)
    }
    return changed(params, **fields, max_seqlen_q=plan.max_seqlen_q, max_seqlen_kv=plan.max_seqlen_kv)


@injects("middle-stages-without-metadata")
class MiddleStagesWithoutMetadata(Fault):
    def on_batch(self, batch: Batch, context: RankContext, chunk: int, micro_batch: int) -> Batch:
        middle = 0 < context.place.pp < context.config.layout.pp - 1
        return replace(batch, params=None) if middle else batch


@injects("middle-stage-tp-ranks-with-garbage")
class MiddleStageTpRanksWithGarbage(Fault):
    def on_batch(self, batch: Batch, context: RankContext, chunk: int, micro_batch: int) -> Batch:
        middle = 0 < context.place.pp < context.config.layout.pp - 1
        if not middle or context.place.tp == 0:
            return batch
        nothing = dict.fromkeys(OFFSETS + PADDED)
        return replace(batch, params=changed(batch.params, **nothing, max_seqlen_q=GARBAGE, max_seqlen_kv=GARBAGE))


@injects("last-stage-tp-ranks-without-metadata")
class LastStageTpRanksWithoutMetadata(Fault):
    def on_batch(self, batch: Batch, context: RankContext, chunk: int, micro_batch: int) -> Batch:
        hit = context.place.tp > 0 and context.place.pp == context.config.layout.pp - 1
        return replace(batch, params=None) if hit else batch


@injects("later-chunks-without-metadata")
class LaterChunksWithoutMetadata(Fault):
    def on_batch(self, batch: Batch, context: RankContext, chunk: int, micro_batch: int) -> Batch:
        return replace(batch, params=None) if chunk > 0 else batch


@injects("metadata-lost-inside-the-model")
class MetadataLostInsideTheModel(Fault):
    def on_model(self, chunks: list[Any], context: RankContext) -> None:
        def drop(module: Any, args: Any, kwargs: Any) -> tuple[Any, Any]:
            return args, {**kwargs, "packed_seq_params": None}

        if context.place.pp == 1:
            for chunk in chunks:
                unwrap(chunk).register_forward_pre_hook(drop, with_kwargs=True)


@injects("attention-without-mask")
class AttentionWithoutMask(Fault):
    def on_model(self, chunks: list[Any], context: RankContext) -> None:
        if context.place.pp == 1:
            for chunk in chunks:
                for layer in unwrap(chunk).decoder.layers:
                    layer.self_attention.attn_mask_type = AttnMaskType.no_mask


@injects("recomputed-forward-with-later-metadata")
class RecomputedForwardWithLaterMetadata(Fault):
    latest: Any = None

    def on_batch(self, batch: Batch, context: RankContext, chunk: int, micro_batch: int) -> Batch:
        self.latest = batch.params
        return batch

    def on_model(self, chunks: list[Any], context: RankContext) -> None:
        def replaced(module: Any, args: Any, kwargs: Any) -> tuple[Any, Any]:
            return args, {**kwargs, "packed_seq_params": self.latest} if recomputing() else kwargs

        for chunk in chunks:
            for layer in unwrap(chunk).decoder.layers:
                layer.self_attention.core_attention.register_forward_pre_hook(replaced, with_kwargs=True)


@injects("max-seqlen-is-a-tensor")
class MaxSeqlenIsATensor(Fault):
    def on_batch(self, batch: Batch, context: RankContext, chunk: int, micro_batch: int) -> Batch:
        longest = torch.tensor(batch.params.max_seqlen_q)
        return replace(batch, params=changed(batch.params, max_seqlen_q=longest, max_seqlen_kv=longest))


@injects("cu-seqlens-two-dimensional")
class CuSeqlensTwoDimensional(Fault):
    def on_batch(self, batch: Batch, context: RankContext, chunk: int, micro_batch: int) -> Batch:
        return replace(batch, params=with_offsets(batch.params, batch.params.cu_seqlens_q[None]))


@injects("cu-seqlens-int64")
class CuSeqlensInt64(Fault):
    def on_batch(self, batch: Batch, context: RankContext, chunk: int, micro_batch: int) -> Batch:
        return replace(batch, params=with_offsets(batch.params, batch.params.cu_seqlens_q.long()))


@injects("kv-offsets-int64")
class KvOffsetsInt64(Fault):
    def on_batch(self, batch: Batch, context: RankContext, chunk: int, micro_batch: int) -> Batch:
        return replace(batch, params=changed(batch.params, cu_seqlens_kv=batch.params.cu_seqlens_kv.long()))


@injects("cu-seqlens-on-another-device")
class CuSeqlensOnAnotherDevice(Fault):
    def on_batch(self, batch: Batch, context: RankContext, chunk: int, micro_batch: int) -> Batch:
        other = "cpu" if context.device.kind == "cuda" else "meta"  # the only other device on a machine without GPUs
        return replace(batch, params=changed(batch.params, cu_seqlens_q=batch.params.cu_seqlens_q.to(other)))


def _extended(params: Any, value: int | None) -> Any:
    """Return a copy with three entries appended to all offsets: `value`, or their last entry if it is None."""
    fields = {name: getattr(params, name) for name in OFFSETS + PADDED if getattr(params, name) is not None}
    more = {
        name: offsets[-1:] if value is None else torch.full_like(offsets[-1:], value)
        for name, offsets in fields.items()
    }
    return changed(params, **{name: torch.cat([fields[name], more[name].repeat(3)]) for name in fields})


@injects("ghost-segments-at-the-end")
class GhostSegmentsAtTheEnd(Fault):
    def on_batch(self, batch: Batch, context: RankContext, chunk: int, micro_batch: int) -> Batch:
        return replace(batch, params=_extended(batch.params, None))


@injects("cu-seqlens-with-sentinels")
class CuSeqlensWithSentinels(Fault):
    def on_batch(self, batch: Batch, context: RankContext, chunk: int, micro_batch: int) -> Batch:
        return replace(batch, params=_extended(batch.params, -1))


@injects("padded-offsets-copied")
class PaddedOffsetsCopied(Fault):
    def on_batch(self, batch: Batch, context: RankContext, chunk: int, micro_batch: int) -> Batch:
        copies = {name: getattr(batch.params, name).clone() for name in PADDED}
        return replace(batch, params=changed(batch.params, **copies))


@injects("micro-batch-counts-differ-over-dp")
class MicroBatchCountsDifferOverDp(Fault):
    def micro_batches(self, count: int, context: RankContext, step: int) -> int:
        return count - 1 if context.place.dp == 1 else count


@injects("padded-offsets-rounded-down")
class PaddedOffsetsRoundedDown(Fault):
    def on_batch(self, batch: Batch, context: RankContext, chunk: int, micro_batch: int) -> Batch:
        multiple, params = context.config.style.document_multiple, batch.params
        down = params.cu_seqlens_q // multiple * multiple
        down[-1] = params.cu_seqlens_q_padded[-1]  # the row keeps its length
        return replace(batch, params=changed(params, **dict.fromkeys(PADDED, down)))


@injects("document-boundary-dropped-on-one-tp-rank")
class DocumentBoundaryDroppedOnOneTpRank(Fault):
    def on_batch(self, batch: Batch, context: RankContext, chunk: int, micro_batch: int) -> Batch:
        params = batch.params
        if context.place.tp != 1 or len(params.cu_seqlens_q) < 3:
            return batch
        fields = {name: getattr(params, name) for name in OFFSETS + PADDED}
        cut = {name: torch.cat([value[:1], value[2:]]) for name, value in fields.items() if value is not None}
        return replace(batch, params=changed(params, **cut))


@injects("max-seqlen-divided-by-cp")
class MaxSeqlenDividedByCp(Fault):
    def on_batch(self, batch: Batch, context: RankContext, chunk: int, micro_batch: int) -> Batch:
        local = batch.params.max_seqlen_q // context.config.layout.cp
        return replace(batch, params=changed(batch.params, max_seqlen_q=local, max_seqlen_kv=local))


@injects("cu-seqlens-of-the-first-row-only")
class CuSeqlensOfTheFirstRowOnly(Fault):
    def on_batch(self, batch: Batch, context: RankContext, chunk: int, micro_batch: int) -> Batch:
        plan = self.truths(context)[micro_batch].plan
        first = MicroBatch(rows=plan.rows[:1], style=plan.style)
        return replace(batch, params=of_plan(batch.params, first.params()))


@injects("stages-read-different-packs")
class StagesReadDifferentPacks(Fault):
    def on_batch(self, batch: Batch, context: RankContext, chunk: int, micro_batch: int) -> Batch:
        if context.place.pp != 1:
            return batch
        truths = self.truths(context)
        other = truths[(micro_batch + 1) % len(truths)]
        return replace(batch, params=of_plan(batch.params, other.plan.params()), **own_fields(batch, other, context))


@injects("metadata-of-the-first-micro-batch-reused")
class MetadataOfTheFirstMicroBatchReused(Fault):
    kept: Any = None

    def on_batch(self, batch: Batch, context: RankContext, chunk: int, micro_batch: int) -> Batch:
        if self.kept is None:
            self.kept = batch.params
        return replace(batch, params=self.kept)


@injects("padded-offsets-on-one-tp-rank")
class PaddedOffsetsOnOneTpRank(Fault):
    def on_batch(self, batch: Batch, context: RankContext, chunk: int, micro_batch: int) -> Batch:
        if context.place.tp != 1:
            return batch
        return replace(batch, params=changed(batch.params, **dict.fromkeys(PADDED, batch.params.cu_seqlens_q)))


@injects("real-offsets-where-padded-must-be")
class RealOffsetsWherePaddedMustBe(Fault):
    def on_batch(self, batch: Batch, context: RankContext, chunk: int, micro_batch: int) -> Batch:
        return replace(batch, params=changed(batch.params, **dict.fromkeys(PADDED, batch.params.cu_seqlens_q)))


@injects("squares-of-whole-packs")
class SquaresOfWholePacks(Fault):
    def on_workload(self, work: Workload, context: RankContext) -> Workload:
        packs = [micro.plan.slots for micro in self.truths(context)]
        return replace(work, squares=sum(slots**2 for slots in packs))


@injects("work-counted-once-per-model-chunk")
class WorkCountedOncePerModelChunk(Fault):
    def on_workload(self, work: Workload, context: RankContext) -> Workload:
        chunks = context.config.layout.vpp
        return replace(work, tokens=chunks * work.tokens, squares=chunks * work.squares)
