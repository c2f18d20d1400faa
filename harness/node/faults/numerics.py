"""Injections of class normalisation: into the loss, the gradients and their reduction."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from megatron.core import parallel_state
from torch import Tensor

from harness.node.data_paths.base import RankContext
from harness.node.faults.seams import Fault
from harness.node.probe.model.gpt import unwrap


class GradientsTimesCp(Fault):
    def on_gradients(self, chunks: list[Any], context: RankContext) -> None:
        for chunk in chunks:
            chunk.scale_gradients(float(context.config.layout.cp))


class GradientShardOfOneTpRankDoubled(Fault):
    def on_gradients(self, chunks: list[Any], context: RankContext) -> None:
        if context.place.tp == 1 and context.place.pp == 1:
            unwrap(chunks[0]).decoder.layers[0].mlp.linear_fc1.weight.main_grad.mul_(2)


class LossAveragedPerMicroBatch(Fault):
    def on_loss(self, loss: Tensor, tokens: Tensor, context: RankContext) -> tuple[Tensor, Tensor]:
        return loss / tokens, torch.ones_like(tokens)


class TokenCountOfOneCpRankLost(Fault):
    def on_loss(self, loss: Tensor, tokens: Tensor, context: RankContext) -> tuple[Tensor, Tensor]:
        return loss, torch.zeros_like(tokens) if context.place.cp == 1 else tokens


class NanOnAFullyMaskedShard(Fault):
    def on_loss(self, loss: Tensor, tokens: Tensor, context: RankContext) -> tuple[Tensor, Tensor]:
        return loss / tokens * tokens, tokens


class NormGradientsNotReducedOverTp(Fault):
    def on_model(self, chunks: list[Any], context: RankContext) -> None:
        for chunk in chunks:
            for parameter in unwrap(chunk).parameters():
                if parameter.dim() == 1:
                    parameter.sequence_parallel = False  # finalize_model_grads goes by this mark


class NormGradientsReducedTwiceOverTp(Fault):
    def on_gradients(self, chunks: list[Any], context: RankContext) -> None:
        for chunk in chunks:
            for parameter in unwrap(chunk).parameters():
                if parameter.dim() == 1:
                    dist.all_reduce(parameter.main_grad, group=parallel_state.get_tensor_model_parallel_group())


class GradientsNotReducedOverDp(Fault):
    def on_model(self, chunks: list[Any], context: RankContext) -> None:
        for chunk in chunks:
            chunk.finish_grad_sync = lambda *args, **kwargs: None
