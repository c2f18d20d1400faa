"""Injections into adapters: they patch megatron.bridge.peft, 0.6."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from functools import wraps
from typing import Any

import torch

from harness.faults.node_fault import Fault, injects
from harness.features.adapters.node_adapters import adapted_layers
from harness.probe.model.gpt import unwrap
from harness.upstreams.node_base import RankContext


@injects("adapter-gradient-of-one-tp-rank")
class AdapterGradientOfOneTpRank(Fault):
    """Leave the gradient of an adapter's first factor unsummed over tp."""

    def on_model(self, chunks: list[Any], context: RankContext) -> None:
        for layer in adapted_layers(unwrap(chunks[0])):
            if not layer.adapter.input_is_parallel:
                layer.adapter.linear_out.allreduce_dgrad, layer.adapter.linear_out.disable_grad_reduce = False, True


@injects("norm-left-trainable")
class NormLeftTrainable(Fault):
    """Let the last norm train beside the adapters."""

    def on_path(self, path: Any, context: RankContext) -> None:
        base: Any = importlib.import_module("megatron.bridge.peft.base").PEFT
        freeze = base.freeze_model

        def wrong(peft: Any, model: Any, training: bool = True) -> None:
            freeze(peft, model, training=training)
            model.decoder.final_layernorm.weight.requires_grad = True

        base.freeze_model = wrong


@injects("frozen-weight-decays")
class FrozenWeightDecays(Fault):
    """Shrink the frozen embedding of one replica, as weight decay would."""

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


@injects("merged-with-alpha-alone")
class MergedWithAlphaAlone(Fault):
    """Scale the adapter's product by alpha, and not by alpha / rank, when it is merged."""

    def on_model(self, chunks: list[Any], context: RankContext) -> None:
        def wrong(right: Any, merger: Any, base: Any, out: Any, into: Any, alpha: int, rank: int, **more: Any) -> Any:
            return right(merger, base, out, into, alpha, rank, **{**more, "scale": float(alpha)})

        _replaced_merge(wrong)


@injects("merged-shards-swapped")
class MergedShardsSwapped(Fault):
    """Put the tp ranks' shards of an adapter together in reverse order."""

    def on_model(self, chunks: list[Any], context: RankContext) -> None:
        module: Any = importlib.import_module("megatron.bridge.peft.lora_merge")

        class Reversed:
            """torch.distributed, whose all_gather fills the list from its end."""

            @staticmethod
            def all_gather(tensors: list[Any], tensor: Any, group: Any = None) -> None:
                torch.distributed.all_gather(tensors[::-1], tensor, group=group)

        module.dist = Reversed
