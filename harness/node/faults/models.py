"""Injections of class model: experts, multi-token prediction, variants of attention, adapters, vision, layer patterns.

They patch megatron.core.transformer.moe, .multi_token_prediction and .multi_latent_attention, 0.17 to 0.19,
megatron.bridge.peft, 0.6, and the kernels that megatron.core.ssm.gated_delta_net.gdn calls, 0.19; or they change the
arguments of Mamba and the settings of the harness's reference attention.
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
from harness.node.faults.fault import Fault
from harness.node.faults.metadata import changed
from harness.node.faults.numerics import RopeByRealOffsets
from harness.node.probe.model.bridge.adapters import adapted_layers
from harness.node.probe.model.bridge.vision import language_of
from harness.node.probe.model.gpt import expert_rank, shard_ranks, unwrap
from harness.node.probe.weights import NamedParameter, is_expert, named_parameters
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


_DELTA_NET = "megatron.core.ssm.gated_delta_net.gdn"


class SequenceIndexDropped(Fault):
    def on_batch(self, batch: Batch, context: RankContext, chunk: int, micro_batch: int) -> Batch:
        return replace(batch, params=changed(batch.params, total_tokens=None, seq_idx=None))


def _as_one_document(kernel: Callable[..., Any]) -> Callable[..., Any]:
    def wrong(*args: Any, cu_seqlens: Tensor | None = None, **kwargs: Any) -> Any:
        return kernel(*args, cu_seqlens=None if cu_seqlens is None else cu_seqlens[[0, -1]], **kwargs)

    return wrong


class DeltaStateCrossesDocuments(Fault):
    def on_model(self, chunks: list[Any], context: RankContext) -> None:
        if context.place.tp == 1:
            for layer in unwrap(chunks[0]).decoder.layers:
                if hasattr(layer.self_attention, "gated_delta_rule"):
                    layer.self_attention.gated_delta_rule = _as_one_document(layer.self_attention.gated_delta_rule)


class ConvolutionCrossesDocuments(Fault):
    def on_model(self, chunks: list[Any], context: RankContext) -> None:
        module: Any = importlib.import_module(_DELTA_NET)
        module.causal_conv1d = _as_one_document(module.causal_conv1d)


class DeltaSlotsInZigzagOrder(Fault):
    def on_model(self, chunks: list[Any], context: RankContext) -> None:
        module: Any = importlib.import_module(_DELTA_NET)

        def unchanged(cu_seqlens: Tensor, cp_size: int, slots: int) -> tuple[Tensor, Tensor]:
            order = torch.arange(slots, device=cu_seqlens.device)
            return order, order

        module._build_thd_cp_a2a_perm = unchanged


class ExpertBiasOfOneReplica(Fault):
    def on_model(self, chunks: list[Any], context: RankContext) -> None:
        module = importlib.import_module("megatron.core.distributed.finalize_model_grads")
        upstream = module.get_updated_expert_bias

        def own(tokens: Tensor, bias: Tensor, rate: float, *args: Any, **kwargs: Any) -> Tensor:
            alone = tokens.clone()
            updated: Tensor = upstream(tokens, bias, rate, *args, **kwargs)  # collective
            if context.place.dp != 1:
                return updated
            return bias + torch.sign(alone.mean(-1, keepdim=True) - alone) * rate

        module.get_updated_expert_bias = own  # type: ignore[attr-defined]


class CapacityOfHalfTheTokens(Fault):
    def on_model(self, chunks: list[Any], context: RankContext) -> None:
        module = importlib.import_module("megatron.core.transformer.moe.router")
        upstream = module.apply_router_token_dropping

        def half(*args: Any, capacity_factor: float, **kwargs: Any) -> Any:
            return upstream(*args, capacity_factor=capacity_factor / 2, **kwargs)

        if context.place.dp == 1:
            module.apply_router_token_dropping = half  # type: ignore[attr-defined]


class ExpertsSplitOverOtherRanks(Fault):
    def on_gradients(self, chunks: list[Any], context: RankContext) -> None:
        for chunk in chunks:
            for item in named_parameters(unwrap(chunk), **shard_ranks(context)):
                if is_expert(item.name):
                    item.parameter.main_grad.mul_(1.5 - context.place.tp)  # type: ignore[attr-defined]


class OtherExpertsAfterAnUpdate(Fault):
    def on_model(self, chunks: list[Any], context: RankContext) -> None:
        module = importlib.import_module("megatron.core.transformer.moe.router")
        upstream = module.topk_routing_with_score_function

        def next_ones(logits: Tensor, *args: Any, **kwargs: Any) -> Any:
            wrong = self.step > 0 and context.place.dp == 1
            return upstream(logits.roll(1, -1) if wrong else logits, *args, **kwargs)

        module.topk_routing_with_score_function = next_ones  # type: ignore[attr-defined]


class OtherTokensDroppedAfterAnUpdate(Fault):
    def on_model(self, chunks: list[Any], context: RankContext) -> None:
        module = importlib.import_module("megatron.core.transformer.moe.router")
        upstream = module.apply_router_token_dropping

        def dropping(probs: Tensor, routing_map: Tensor, *args: Any, **kwargs: Any) -> Any:
            if self.step == 0 or context.place.dp != 1:
                return upstream(probs, routing_map, *args, **kwargs)
            _, taken = upstream((2 - probs) * routing_map, routing_map, *args, **kwargs)
            return probs * taken, taken

        module.apply_router_token_dropping = dropping  # type: ignore[attr-defined]


class ExpertGradientsNotDivided(Fault):
    def on_model(self, chunks: list[Any], context: RankContext) -> None:
        for chunk in chunks:
            upstream = chunk.scale_gradients

            def without_experts(factor: Any, chunk: Any = chunk, upstream: Callable[..., None] = upstream) -> None:
                held, chunk.expert_parallel_buffers = chunk.expert_parallel_buffers, []
                upstream(factor)
                chunk.expert_parallel_buffers = held

            chunk.scale_gradients = without_experts


class GradientsNotDivided(Fault):
    def on_model(self, chunks: list[Any], context: RankContext) -> None:
        for chunk in chunks:
            chunk.scale_gradients = lambda factor: None


def _core_attention(chunks: list[Any]) -> dict[int, Any]:
    """Global number of a layer -> its core attention."""
    layers = (layer for chunk in chunks for layer in unwrap(chunk).decoder.layers)
    return {layer.layer_number: layer.self_attention.core_attention for layer in layers}


class WindowOneTokenLongerOnOneTpRank(Fault):
    def on_model(self, chunks: list[Any], context: RankContext) -> None:
        for number, attention in _core_attention(chunks).items():
            if context.place.tp == 1 and number > 1:
                attention.window += 1


class WindowOfTheWrongLayers(Fault):
    def on_model(self, chunks: list[Any], context: RankContext) -> None:
        window = context.config.model.window
        for attention in _core_attention(chunks).values() if context.place.pp == 1 else ():
            attention.window = window if attention.window is None else None


class SoftmaxScaleDroppedOnOneStage(Fault):
    def on_model(self, chunks: list[Any], context: RankContext) -> None:
        for attention in _core_attention(chunks).values() if context.place.pp == 1 else ():
            attention.softmax_scale = None
