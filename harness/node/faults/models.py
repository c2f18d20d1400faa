"""Injections of class model: experts, multi-token prediction, latent attention, adapters, vision.

They patch megatron.core.transformer.moe, .multi_token_prediction and .multi_latent_attention, 0.17 to 0.19, and
megatron.bridge.peft, 0.6.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import wraps
from typing import Any

import torch
import torch.distributed as dist
from megatron.core import parallel_state
from torch import Tensor

from harness.node.data_paths.base import Batch, RankContext
from harness.node.faults.attention import RopeByRealOffsets
from harness.node.faults.fault import Fault
from harness.node.faults.metadata import changed
from harness.node.probe.model.bridge.adapters import adapted_layers
from harness.node.probe.model.bridge.vision import language_of
from harness.node.probe.model.gpt import expert_rank, shard_ranks, unwrap
from harness.node.probe.weights import NamedParameter, named_parameters
from harness.oracle.drawing import INITIAL_STD, draw


class AuxLossDividedByCp(Fault):
    def on_model(self, chunks: list[Any], context: RankContext) -> None:
        scaler = importlib.import_module("megatron.core.transformer.moe.moe_utils").MoEAuxLossAutoScaler
        upstream: Callable[[Tensor], None] = scaler.set_loss_scale
        scaler.set_loss_scale = staticmethod(lambda scale: upstream(scale / context.config.layout.cp))


class ZLossAddedUpOverCp(Fault):
    def on_model(self, chunks: list[Any], context: RankContext) -> None:
        module = importlib.import_module("megatron.core.transformer.moe.router")
        upstream: Callable[..., Tensor] = module.z_loss_func

        def added_up(*args: Any, **kwargs: Any) -> Tensor:
            return upstream(*args, **kwargs) * context.config.layout.cp

        module.z_loss_func = added_up  # type: ignore[attr-defined]


class PaddingCountedByRouters(Fault):
    def on_batch(self, batch: Batch, context: RankContext, chunk: int, micro_batch: int) -> Batch:
        return replace(batch, padding_mask=None)


class RouterStatisticsOverMergedRows(Fault):
    def on_batch(self, batch: Batch, context: RankContext, chunk: int, micro_batch: int) -> Batch:
        return replace(batch, params=changed(batch.params, tokens_per_sample=None))


def _parameters(chunks: list[Any], context: RankContext, ep_rank: int) -> Iterator[NamedParameter]:
    for chunk in chunks:
        yield from named_parameters(unwrap(chunk), **shard_ranks(context) | {"ep_rank": ep_rank})


def _redraw(item: NamedParameter, seed: int) -> None:
    full = draw("weight", item.name, item.shard.full, seed) * INITIAL_STD
    item.parameter.data.copy_(item.shard.take(full))


class RouterWeightsDifferOnOneTpRank(Fault):
    def on_model(self, chunks: list[Any], context: RankContext) -> None:
        for item in _parameters(chunks, context, 0) if context.place.tp == 1 else ():
            if item.name.endswith("mlp.router.weight"):
                _redraw(item, context.config.train.seed + 1)


class ExpertsOfAnotherEpRank(Fault):
    def on_model(self, chunks: list[Any], context: RankContext) -> None:
        for item in _parameters(chunks, context, 0) if expert_rank() == 1 else ():
            if ".experts." in item.name:
                _redraw(item, context.config.train.seed)


class ExpertGradientsTimesEp(Fault):
    def on_gradients(self, chunks: list[Any], context: RankContext) -> None:
        for item in _parameters(chunks, context, 0):
            if ".experts." in item.name:
                item.parameter.main_grad.mul_(context.config.layout.ep)  # type: ignore[attr-defined]


class PredictionRollsAcrossDocuments(Fault):
    def on_model(self, chunks: list[Any], context: RankContext) -> None:
        module = importlib.import_module("megatron.core.transformer.multi_token_prediction")
        upstream = module.roll_tensor

        def wrong(*args: Any, packed_seq_params: Any = None, **kwargs: Any) -> Any:
            return upstream(*args, **kwargs)

        module.roll_tensor = wrong  # type: ignore[attr-defined]


class PredictionWithoutLossMask(Fault):
    def on_model(self, chunks: list[Any], context: RankContext) -> None:
        def drop(module: Any, args: Any, kwargs: Any) -> Any:
            return args, kwargs | {"loss_mask": None}

        for chunk in chunks:
            unwrap(chunk).register_forward_pre_hook(drop, with_kwargs=True)


class LatentRopeByRealOffsets(RopeByRealOffsets):
    on_model = RopeByRealOffsets.on_model
    module = "megatron.core.transformer.multi_latent_attention"

    @staticmethod
    def table(chunks: list[Any], length: int) -> Tensor:
        attention = unwrap(chunks[0]).decoder.layers[0].self_attention
        return attention.rotary_pos_emb(length, packed_seq=True)  # type: ignore[no-any-return]


class AdapterGradientOfOneTpRank(Fault):
    def on_model(self, chunks: list[Any], context: RankContext) -> None:
        for layer in adapted_layers(unwrap(chunks[0])):
            if not layer.adapter.input_is_parallel:
                layer.adapter.linear_out.allreduce_dgrad, layer.adapter.linear_out.disable_grad_reduce = False, True


class NormLeftTrainable(Fault):
    def on_path(self, path: Any, context: RankContext) -> None:
        base: Any = importlib.import_module("megatron.bridge.peft.base").PEFT
        freeze = base.freeze_model

        def wrong(peft: Any, model: Any, training: bool = True) -> None:
            freeze(peft, model, training=training)
            model.decoder.final_layernorm.weight.requires_grad = True

        base.freeze_model = wrong


class FrozenWeightDecays(Fault):
    chunk: Any

    def on_model(self, chunks: list[Any], context: RankContext) -> None:
        self.chunk = unwrap(chunks[0])

    def on_optimizer(self, optimizer: Any, context: RankContext, step: int) -> None:
        if step == 1 and context.place.dp == 1:
            with torch.no_grad():
                self.chunk.embedding.word_embeddings.weight.mul_(1 - 1e-5)


def _replaced_merge(wrong: Callable[..., Any]) -> None:
    merger: Any = importlib.import_module("megatron.bridge.peft.lora_merge").LoRAMerge
    right = merger.merge
    merger.merge = wraps(right)(lambda self, *args, **more: wrong(right, self, *args, **more))


class MergedWithAlphaAlone(Fault):
    def on_model(self, chunks: list[Any], context: RankContext) -> None:
        def wrong(right: Any, merger: Any, base: Any, out: Any, into: Any, alpha: int, rank: int, **more: Any) -> Any:
            return right(merger, base, out, into, alpha, rank, **{**more, "scale": float(alpha)})

        _replaced_merge(wrong)


class MergedShardsSwapped(Fault):
    def on_model(self, chunks: list[Any], context: RankContext) -> None:
        module: Any = importlib.import_module("megatron.bridge.peft.lora_merge")

        class Reversed:
            """torch.distributed, whose all_gather fills the list from its end."""

            @staticmethod
            def all_gather(tensors: list[Any], tensor: Any, group: Any = None) -> None:
                torch.distributed.all_gather(tensors[::-1], tensor, group=group)

        module.dist = Reversed


class PositionsEdited(Fault):
    """Changes the positions that the language model of a model with vision gets, [axes, rows, local slots]."""

    def __init__(self, edit: Callable[[Tensor, RankContext], Tensor]) -> None:
        self.edit = edit

    def on_batch(self, batch: Batch, context: RankContext, chunk: int, micro_batch: int) -> Batch:
        assert batch.position_ids is not None
        return replace(batch, position_ids=self.edit(batch.position_ids, context))

    def on_model(self, chunks: list[Any], context: RankContext) -> None:
        def changed(module: Any, args: Any, kwargs: Any) -> tuple[Any, Any]:
            return args, {**kwargs, "position_ids": self.edit(kwargs["position_ids"], context)}

        for chunk in chunks:
            language_of(unwrap(chunk)).register_forward_pre_hook(changed, with_kwargs=True)


def swapped(found: Tensor, context: RankContext) -> Tensor:
    """Height and width in each other's place."""
    return found[[0, 2, 1]]


def running_on(found: Tensor, context: RankContext) -> Tensor:
    """The slots of the packed row, counted along every axis."""
    return torch.arange(found.shape[-1], device=found.device).expand_as(found)


def of_next_rank(found: Tensor, context: RankContext) -> Tensor:
    """What the next context-parallel rank has."""
    size = context.config.layout.cp
    parts = [torch.empty_like(found) for _ in range(size)]
    dist.all_gather(parts, found.contiguous(), group=parallel_state.get_context_parallel_group())
    return parts[(context.place.cp + 1) % size]


class SectionsOfTimeAlone(Fault):
    def on_model(self, chunks: list[Any], context: RankContext) -> None:
        language = language_of(unwrap(chunks[0]))
        language.mrope_section = [sum(language.mrope_section), 0, 0]


class FeaturesOfTheNextToken(Fault):
    def on_model(self, chunks: list[Any], context: RankContext) -> None:
        unwrap(chunks[0]).vision_model.register_forward_hook(
            lambda module, args, output: (output[0].roll(1, 0), output[1])
        )
