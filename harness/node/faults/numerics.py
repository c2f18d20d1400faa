"""Injections of class normalisation: they change the loss, the gradients or their reduction."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from megatron.core import parallel_state
from torch import Tensor

from harness.core.cell.canary_legs import Leg
from harness.node.data_paths.base import RankContext
from harness.node.faults.fault import Fault
from harness.node.probe.model.gpt import unwrap
from harness.node.probe.model.optimizer_state import held_by, norm_function


class GradientsTimesCp(Fault):
    def on_gradients(self, chunks: list[Any], context: RankContext) -> None:
        for chunk in chunks:
            chunk.scale_gradients(float(context.config.layout.cp))


class GradientShardOfOneTpRankDoubled(Fault):
    def on_gradients(self, chunks: list[Any], context: RankContext) -> None:
        if context.place.tp == 1 and context.place.pp == 1:
            unwrap(chunks[0]).decoder.layers[0].mlp.linear_fc1.weight.main_grad.mul_(2)


class StageClippedByItsOwnNorm(Fault):
    def on_optimizer(self, optimizer: Any, context: RankContext, step: int) -> None:
        if context.place.pp == 1:
            for parameter in held_by(optimizer):
                parameter.main_grad.mul_(0.5)  # type: ignore[attr-defined]


class GradientsLostBeforeTheUpdateOnOneTpRank(Fault):
    def on_optimizer(self, optimizer: Any, context: RankContext, step: int) -> None:
        if context.place.tp == 1:
            for parameter in held_by(optimizer):
                parameter.main_grad.zero_()  # type: ignore[attr-defined]


class EvaluationLeavesModulesInEvaluationMode(Fault):
    def on_model(self, chunks: list[Any], context: RankContext) -> None:
        if context.place.pp == 1:
            for chunk in chunks:
                chunk.train = partial(_never_training, chunk.train)  # nn.Module.eval calls it too


def _never_training(train: Any, mode: bool = True) -> Any:
    return train(False)


class EvaluationWithTheWeightsOfTheFirstStep(Fault):
    def on_model(self, chunks: list[Any], context: RankContext) -> None:
        if context.place.pp == 1:
            for chunk in chunks:
                first = [parameter.detach().clone() for parameter in chunk.parameters()]
                chunk.train = partial(self._exchanged, chunk, first, chunk.train)

    @staticmethod
    def _exchanged(chunk: Any, others: list[Tensor], train: Any, mode: bool = True) -> Any:
        """Exchange the weights with others, before an evaluation and after it."""
        for parameter, other in zip(chunk.parameters(), others):
            kept = parameter.detach().clone()
            parameter.data.copy_(other)
            other.copy_(kept)
        return train(mode)


class ShardOfOneTpRankNotInTheGradientNorm(Fault):
    """Without clipping it changes nothing else."""

    def on_optimizer(self, optimizer: Any, context: RankContext, step: int) -> None:
        if context.place.tp == 1 and step == 0:
            one = getattr(optimizer, "chained_optimizers", [optimizer])[0]
            upstream = getattr(one, norm_function(one))
            setattr(one, norm_function(one), lambda *args: upstream(*args)[1:])


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
                    parameter.sequence_parallel = False  # finalize_model_grads reduces parameters with this mark


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


class GatheredWeightsLostOnOneReplica(Fault):
    """In every bucket the replica keeps the old weights of shards that other ranks own."""

    def on_model(self, chunks: list[Any], context: RankContext) -> None:
        for chunk in chunks if context.place.dp == 1 else ():
            for group in chunk.bucket_groups:
                group.start_param_sync = _own_shard_only(group, group.start_param_sync)


def _own_shard_only(group: Any, gather: Callable[..., None]) -> Callable[..., None]:
    def wrong(*args: Any, **kwargs: Any) -> None:
        old = [bucket.param_data.clone() for bucket in group.buckets]
        gather(*args, **kwargs)
        ranks, own = (getattr(group, f"intra_distributed_optimizer_instance_{name}") for name in ("size", "rank"))
        for bucket, kept in zip(group.buckets, old):
            for index, (new, before) in enumerate(zip(bucket.param_data.chunk(ranks), kept.chunk(ranks))):
                if index != own:
                    new.copy_(before)

    return wrong


class BucketReducedBeforeTheLastMicroBatch(Fault):
    """From the second pass on; in the first, upstream reduces all buckets at the end."""

    ready = 0  # gradients of the first bucket that the backwards of this pass have computed

    def on_step(self, context: RankContext, step: int) -> None:
        super().on_step(context, step)
        self.ready = 0

    def on_leg(self, context: RankContext, leg: Leg) -> None:
        super().on_leg(context, leg)
        self.ready = 0

    def on_model(self, chunks: list[Any], context: RankContext) -> None:
        group = chunks[0].bucket_groups[0]
        register = group.register_grad_ready

        def early(*args: Any) -> None:
            if group.is_first_batch:
                register(*args)
                return
            self.ready += 1
            if self.ready == (len(self.truths(context)) - 1) * len(group.params):
                group.start_grad_sync()
                group.grad_reduce_handle.wait()  # before the last micro-batch adds to the bucket: deterministic

        group.register_grad_ready = early
