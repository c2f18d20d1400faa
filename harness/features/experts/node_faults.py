"""Injections into experts and their routers: they patch megatron.core.transformer.moe, 0.17 to 0.19."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from harness.faults.node_fault import Fault, injects
from harness.faults.node_metadata import changed
from harness.oracle.drawing import INITIAL_STD, draw
from harness.probe.model.gpt import expert_rank, shard_ranks, unwrap
from harness.probe.weights import NamedParameter, is_expert, named_parameters
from harness.upstreams.node_base import Batch, RankContext


@injects("aux-loss-divided-by-cp")
class AuxLossDividedByCp(Fault):
    """Divide the gradient scale of the routers' auxiliary loss by cp; every loss stays right."""

    def on_model(self, chunks: list[Any], context: RankContext) -> None:
        scaler = importlib.import_module("megatron.core.transformer.moe.moe_utils").MoEAuxLossAutoScaler
        upstream: Callable[[Tensor], None] = scaler.set_loss_scale
        scaler.set_loss_scale = staticmethod(lambda scale: upstream(scale / context.config.layout.cp))


@injects("z-loss-added-up-over-cp")
class ZLossAddedUpOverCp(Fault):
    """Multiply the z-loss by cp, as if the means of all context ranks were added up."""

    def on_model(self, chunks: list[Any], context: RankContext) -> None:
        module = importlib.import_module("megatron.core.transformer.moe.router")
        upstream: Callable[..., Tensor] = module.z_loss_func

        def added_up(*args: Any, **kwargs: Any) -> Tensor:
            return upstream(*args, **kwargs) * context.config.layout.cp

        module.z_loss_func = added_up  # type: ignore[attr-defined]


@injects("padding-counted-by-routers")
class PaddingCountedByRouters(Fault):
    """Drop the padding mask, so that routers count padding slots."""

    def on_batch(self, batch: Batch, context: RankContext, chunk: int, micro_batch: int) -> Batch:
        return replace(batch, padding_mask=None)


@injects("router-statistics-over-merged-rows")
class RouterStatisticsOverMergedRows(Fault):
    """Drop the length of rows, so that auxiliary losses per row run over the merged rows."""

    def on_batch(self, batch: Batch, context: RankContext, chunk: int, micro_batch: int) -> Batch:
        return replace(batch, params=changed(batch.params, tokens_per_sample=None))


def _parameters(chunks: list[Any], context: RankContext, ep_rank: int) -> Iterator[NamedParameter]:
    for chunk in chunks:
        yield from named_parameters(unwrap(chunk), **shard_ranks(context) | {"ep_rank": ep_rank})


def _redraw(named: NamedParameter, seed: int) -> None:
    full = draw("weight", named.name, named.shard.full, seed) * INITIAL_STD
    named.parameter.data.copy_(named.shard.take(full))


@injects("router-weights-differ-on-one-tp-rank")
class RouterWeightsDifferOnOneTpRank(Fault):
    """Draw one tp rank's router weights from another seed."""

    def on_model(self, chunks: list[Any], context: RankContext) -> None:
        for named in _parameters(chunks, context, 0) if context.place.tp == 1 else ():
            if named.name.endswith("mlp.router.weight"):
                _redraw(named, context.config.train.seed + 1)


@injects("experts-of-another-ep-rank")
class ExpertsOfAnotherEpRank(Fault):
    """Give the second ep rank the weights of the first one's experts."""

    def on_model(self, chunks: list[Any], context: RankContext) -> None:
        for named in _parameters(chunks, context, 0) if expert_rank() == 1 else ():
            if ".experts." in named.name:
                _redraw(named, context.config.train.seed)


@injects("expert-gradients-times-ep")
class ExpertGradientsTimesEp(Fault):
    """Multiply the experts' gradients by ep."""

    def on_gradients(self, chunks: list[Any], context: RankContext) -> None:
        for named in _parameters(chunks, context, 0):
            if ".experts." in named.name:
                named.parameter.main_grad.mul_(context.config.layout.ep)  # type: ignore[attr-defined]


@injects("tokens-counted-for-the-next-expert")
class TokensCountedForTheNextExpert(Fault):
    """Give each expert of a group the number of tokens of the one before it."""

    def on_model(self, chunks: list[Any], context: RankContext) -> None:
        grouped = importlib.import_module("megatron.core.transformer.moe.experts").TEGroupedMLP
        upstream: Callable[..., Any] = grouped.forward

        def rolled(experts: Any, hidden: Tensor, tokens_per_expert: Tensor, *args: Any, **kwargs: Any) -> Any:
            return upstream(experts, hidden, tokens_per_expert.roll(1), *args, **kwargs)

        grouped.forward = rolled


@injects("dense-gradients-scaled-as-experts")
class DenseGradientsScaledAsExperts(Fault):
    """Divide the gradients of dense feed-forward blocks by ep, as those of experts are."""

    def on_gradients(self, chunks: list[Any], context: RankContext) -> None:
        for named in _parameters(chunks, context, 0):
            if ".mlp.linear_fc" in named.name:
                named.parameter.main_grad.div_(context.config.layout.ep)  # type: ignore[attr-defined]


@injects("expert-bias-of-one-replica")
class ExpertBiasOfOneReplica(Fault):
    """Update the second replica's expert biases from its own tokens alone."""

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


@injects("capacity-of-half-the-tokens")
class CapacityOfHalfTheTokens(Fault):
    """Halve the expert capacity of the second replica."""

    def on_model(self, chunks: list[Any], context: RankContext) -> None:
        module = importlib.import_module("megatron.core.transformer.moe.router")
        upstream = module.apply_router_token_dropping

        def half(*args: Any, capacity_factor: float, **kwargs: Any) -> Any:
            return upstream(*args, capacity_factor=capacity_factor / 2, **kwargs)

        if context.place.dp == 1:
            module.apply_router_token_dropping = half  # type: ignore[attr-defined]


@injects("experts-split-over-other-ranks")
class ExpertsSplitOverOtherRanks(Fault):
    """Scale the experts' gradients by tp rank, as if other ranks held their shards."""

    def on_gradients(self, chunks: list[Any], context: RankContext) -> None:
        for chunk in chunks:
            for named in named_parameters(unwrap(chunk), **shard_ranks(context)):
                if is_expert(named.name):
                    # 1.5 and 0.5: the sum over both ranks stays right, so only a comparison of the copies shows it.
                    named.parameter.main_grad.mul_(1.5 - context.place.tp)  # type: ignore[attr-defined]


@injects("other-experts-after-an-update")
class OtherExpertsAfterAnUpdate(Fault):
    """Choose the next expert in the second replica, from step 1 on."""

    def on_model(self, chunks: list[Any], context: RankContext) -> None:
        module = importlib.import_module("megatron.core.transformer.moe.router")
        upstream = module.topk_routing_with_score_function

        def next_ones(logits: Tensor, *args: Any, **kwargs: Any) -> Any:
            wrong = self.step > 0 and context.place.dp == 1
            return upstream(logits.roll(1, -1) if wrong else logits, *args, **kwargs)

        module.topk_routing_with_score_function = next_ones  # type: ignore[attr-defined]


@injects("other-tokens-dropped-after-an-update")
class OtherTokensDroppedAfterAnUpdate(Fault):
    """Drop the most instead of the least probable tokens in the second replica, from step 1 on."""

    def on_model(self, chunks: list[Any], context: RankContext) -> None:
        module = importlib.import_module("megatron.core.transformer.moe.router")
        upstream = module.apply_router_token_dropping

        def dropping(probs: Tensor, routing_map: Tensor, *args: Any, **kwargs: Any) -> Any:
            if self.step == 0 or context.place.dp != 1:
                return upstream(probs, routing_map, *args, **kwargs)
            # 2 - p turns the order of probabilities round and keeps them above 0, so that no chosen slot looks
            # unchosen.
            _, taken = upstream((2 - probs) * routing_map, routing_map, *args, **kwargs)
            return probs * taken, taken

        module.apply_router_token_dropping = dropping  # type: ignore[attr-defined]


@injects("expert-gradients-not-divided")
class ExpertGradientsNotDivided(Fault):
    """Leave the experts' gradients undivided by the number of tokens."""

    def on_model(self, chunks: list[Any], context: RankContext) -> None:
        for chunk in chunks:
            upstream = chunk.scale_gradients

            def without_experts(factor: Any, chunk: Any = chunk, upstream: Callable[..., None] = upstream) -> None:
                buffers, chunk.expert_parallel_buffers = chunk.expert_parallel_buffers, []
                upstream(factor)
                chunk.expert_parallel_buffers = buffers

            chunk.scale_gradients = without_experts


@injects("gradients-not-divided")
class GradientsNotDivided(Fault):
    """Leave all gradients undivided by the number of tokens."""

    def on_model(self, chunks: list[Any], context: RankContext) -> None:
        for chunk in chunks:
            chunk.scale_gradients = lambda factor: None
