"""Injections into routers and experts. They patch megatron.core.transformer.moe and .distributed, 0.17 to 0.19."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from harness.node.data_paths.base import RankContext
from harness.node.faults.fault import Fault
from harness.node.probe.model.gpt import shard_ranks, unwrap
from harness.node.probe.weights import is_expert, named_parameters


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
