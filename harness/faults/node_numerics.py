"""Injections of classes leak, normalisation and layout: into the model, the loss, the gradients or their reduction.

Attention and rotary positions are wrong although they receive the right metadata: faults replace `forward` of the
attention modules, which runs after the hook that records the metadata, and `apply_rotary_pos_emb` in
megatron.core.transformer.attention (megatron-core 0.13 to 0.19).
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from functools import partial
from typing import Any

import megatron.core.transformer.attention as upstream
import torch
import torch.distributed as dist
from megatron.core import parallel_state
from torch import Tensor

from harness.core.cell.canary_legs import Leg
from harness.faults.node_edits import DataPathEdited, Edit
from harness.faults.node_fault import Fault, injects
from harness.faults.node_metadata import with_offsets
from harness.features.attention import node_reference
from harness.features.optimizer.node_state import held_by, norm_function
from harness.oracle.drawing import INITIAL_STD, draw
from harness.probe.model.gpt import unwrap
from harness.probe.weights import named_parameters
from harness.upstreams.node_base import RankContext


def offsets_of(params: Any) -> Tensor:
    """Document offsets in the row, [documents + 1]: the padded ones if the params have them."""
    padded: Tensor | None = params.cu_seqlens_q_padded
    return params.cu_seqlens_q if padded is None else padded


def misread(chunks: list[Any], change: Callable[[Tensor], Tensor], layers: set[int] | None = None) -> None:
    """Make attention use `change(offsets)` instead of the offsets it gets.

    `layers`: global numbers, from 1; None: all layers.
    """
    for chunk in chunks:
        for layer in unwrap(chunk).decoder.layers:
            if layers is None or layer.layer_number in layers:
                module = layer.self_attention.core_attention
                module.forward = _misreading(module.forward, change)


def _misreading(forward: Callable[..., Tensor], change: Callable[[Tensor], Tensor]) -> Callable[..., Tensor]:
    def wrong(*args: Any, packed_seq_params: Any, **kwargs: Any) -> Tensor:
        params = with_offsets(packed_seq_params, change(offsets_of(packed_seq_params)))
        return forward(*args, packed_seq_params=params, **kwargs)

    return wrong


def _one_document(offsets: Tensor) -> Tensor:
    return offsets[[0, -1]]


@injects("attention-ignores-documents")
class AttentionIgnoresDocuments(Fault):
    def on_model(self, chunks: list[Any], context: RankContext) -> None:
        misread(chunks, _one_document)


@injects("attention-ignores-documents-in-one-layer")
class AttentionIgnoresDocumentsInOneLayer(Fault):
    def on_model(self, chunks: list[Any], context: RankContext) -> None:
        misread(chunks, _one_document, {5})


@injects("attention-ignores-documents-in-bf16")
class AttentionIgnoresDocumentsInBf16(Fault):
    def on_model(self, chunks: list[Any], context: RankContext) -> None:
        misread(chunks, _one_document, {2})


@injects("kernel-boundary-off-by-one-on-one-tp-rank")
class KernelBoundaryOffByOneOnOneTpRank(Fault):
    def on_model(self, chunks: list[Any], context: RankContext) -> None:
        if context.place.tp == 1:
            misread(chunks, lambda offsets: torch.cat([offsets[:1], offsets[1:-1] + 1, offsets[-1:]]))


@injects("rope-by-real-offsets")
class RopeByRealOffsets(Fault):
    """The rotary code gets the real offsets, with the last one moved to the end of the row to cover all slots."""

    module = upstream.__name__

    def on_model(self, chunks: list[Any], context: RankContext) -> None:
        module: Any = importlib.import_module(self.module)
        apply, seen = module.apply_rotary_pos_emb, [None]

        def note(module: Any, args: Any, kwargs: Any) -> None:
            seen[0] = kwargs["packed_seq_params"]

        def wrong(tensor: Tensor, freqs: Tensor, *args: Any, cu_seqlens: Tensor, **kwargs: Any) -> Tensor:
            params: Any = seen[0]
            real = torch.cat([params.cu_seqlens_q[:-1], cu_seqlens[-1:]])
            # The table must cover the last segment, which is longer now.
            longest = int((real[1:] - real[:-1]).max())
            table = self.table(chunks, longest)
            return apply(tensor, table, *args, cu_seqlens=real, **kwargs)  # type: ignore[no-any-return]

        for chunk in chunks:
            for layer in unwrap(chunk).decoder.layers:
                layer.self_attention.register_forward_pre_hook(note, with_kwargs=True)
        module.apply_rotary_pos_emb = wrong

    @staticmethod
    def table(chunks: list[Any], length: int) -> Tensor:
        return unwrap(chunks[0]).rotary_pos_emb(length)  # type: ignore[no-any-return]


class _RankZero:
    """A process group of the same size in which this rank is rank 0."""

    def __init__(self, group: Any) -> None:
        self._size = group.size()

    def size(self) -> int:
        return self._size  # type: ignore[no-any-return]

    def rank(self) -> int:
        return 0


@injects("rope-of-another-cp-rank")
class RopeOfAnotherCpRank(Fault):
    def on_model(self, chunks: list[Any], context: RankContext) -> None:
        apply = upstream.apply_rotary_pos_emb

        def wrong(*args: Any, cp_group: Any, **kwargs: Any) -> Tensor:
            return apply(*args, cp_group=_RankZero(cp_group), **kwargs)  # type: ignore[no-any-return]

        if context.place.cp == 1:
            upstream.apply_rotary_pos_emb = wrong


@injects("output-layer-shard-of-another-tp-rank")
class OutputLayerShardOfAnotherTpRank(Fault):
    def on_model(self, chunks: list[Any], context: RankContext) -> None:
        if context.place.tp != 1:
            return
        for item in named_parameters(unwrap(chunks[-1]), tp_rank=0, tp_size=context.config.layout.tp):
            if item.name == "output_layer.weight":
                full = draw("weight", item.name, item.shard.full, context.config.train.seed) * INITIAL_STD
                item.parameter.data.copy_(item.shard.take(full))


@injects("loss-divided-by-documents-per-pack")
class LossDividedByDocumentsPerPack(Fault):
    def on_model(self, chunks: list[Any], context: RankContext) -> None:
        def divide(module: Any, args: Any, kwargs: Any, losses: Tensor) -> Tensor:
            return losses / (len(kwargs["packed_seq_params"].cu_seqlens_q) - 1)

        unwrap(chunks[-1]).register_forward_hook(divide, with_kwargs=True)


@injects("attention-backward-not-reduced-over-cp")
class AttentionBackwardNotReducedOverCp(Fault):
    def on_model(self, chunks: list[Any], context: RankContext) -> None:
        def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
            return grads[0][ctx.group.rank()], None

        node_reference.GatherContext.backward = staticmethod(backward)  # type: ignore[method-assign]


@injects("gradients-times-cp")
class GradientsTimesCp(Fault):
    def on_gradients(self, chunks: list[Any], context: RankContext) -> None:
        for chunk in chunks:
            chunk.scale_gradients(float(context.config.layout.cp))


@injects("gradient-shard-of-one-tp-rank-doubled")
class GradientShardOfOneTpRankDoubled(Fault):
    def on_gradients(self, chunks: list[Any], context: RankContext) -> None:
        if context.place.tp == 1 and context.place.pp == 1:
            unwrap(chunks[0]).decoder.layers[0].mlp.linear_fc1.weight.main_grad.mul_(2)


@injects("stage-clipped-by-its-own-norm")
class StageClippedByItsOwnNorm(Fault):
    def on_optimizer(self, optimizer: Any, context: RankContext, step: int) -> None:
        if context.place.pp == 1:
            for parameter in held_by(optimizer):
                parameter.main_grad.mul_(0.5)  # type: ignore[attr-defined]


@injects("gradients-lost-before-the-update-on-one-tp-rank")
class GradientsLostBeforeTheUpdateOnOneTpRank(Fault):
    def on_optimizer(self, optimizer: Any, context: RankContext, step: int) -> None:
        if context.place.tp == 1:
            for parameter in held_by(optimizer):
                parameter.main_grad.zero_()  # type: ignore[attr-defined]


@injects("evaluation-leaves-modules-in-evaluation-mode")
class EvaluationLeavesModulesInEvaluationMode(Fault):
    def on_model(self, chunks: list[Any], context: RankContext) -> None:
        if context.place.pp == 1:
            for chunk in chunks:
                chunk.train = partial(_never_training, chunk.train)  # nn.Module.eval calls it too


def _never_training(train: Any, mode: bool = True) -> Any:
    return train(False)


@injects("evaluation-with-the-weights-of-the-first-step")
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


@injects("shard-of-one-tp-rank-not-in-the-gradient-norm")
class ShardOfOneTpRankNotInTheGradientNorm(Fault):
    """Without clipping it changes nothing else."""

    def on_optimizer(self, optimizer: Any, context: RankContext, step: int) -> None:
        if context.place.tp == 1 and step == 0:
            one = getattr(optimizer, "chained_optimizers", [optimizer])[0]
            upstream = getattr(one, norm_function(one))
            setattr(one, norm_function(one), lambda *args: upstream(*args)[1:])


@injects("loss-averaged-per-micro-batch")
class LossAveragedPerMicroBatch(Fault):
    def on_loss(self, loss: Tensor, tokens: Tensor, context: RankContext) -> tuple[Tensor, Tensor]:
        return loss / tokens, torch.ones_like(tokens)


@injects("mean-of-a-micro-batch-over-another-count")
class MeanOfAMicroBatchOverAnotherCount(DataPathEdited):
    def __init__(self) -> None:
        function = "megatron.core.pipeline_parallel.schedules:forward_step_calc_loss"
        super().__init__(Edit(function, "/= torch.clamp(num_tokens, min=1)", "/= num_tokens + 1"))


@injects("token-count-of-one-cp-rank-lost")
class TokenCountOfOneCpRankLost(Fault):
    def on_loss(self, loss: Tensor, tokens: Tensor, context: RankContext) -> tuple[Tensor, Tensor]:
        return loss, torch.zeros_like(tokens) if context.place.cp == 1 else tokens


@injects("nan-on-a-fully-masked-shard")
class NanOnAFullyMaskedShard(Fault):
    def on_loss(self, loss: Tensor, tokens: Tensor, context: RankContext) -> tuple[Tensor, Tensor]:
        return loss / tokens * tokens, tokens


@injects("norm-gradients-not-reduced-over-tp")
class NormGradientsNotReducedOverTp(Fault):
    def on_model(self, chunks: list[Any], context: RankContext) -> None:
        for chunk in chunks:
            for parameter in unwrap(chunk).parameters():
                if parameter.dim() == 1:
                    parameter.sequence_parallel = False  # finalize_model_grads reduces parameters with this mark


@injects("norm-gradients-reduced-twice-over-tp")
class NormGradientsReducedTwiceOverTp(Fault):
    def on_gradients(self, chunks: list[Any], context: RankContext) -> None:
        for chunk in chunks:
            for parameter in unwrap(chunk).parameters():
                if parameter.dim() == 1:
                    dist.all_reduce(parameter.main_grad, group=parallel_state.get_tensor_model_parallel_group())


@injects("gradients-not-reduced-over-dp")
class GradientsNotReducedOverDp(Fault):
    def on_model(self, chunks: list[Any], context: RankContext) -> None:
        for chunk in chunks:
            chunk.finish_grad_sync = lambda *args, **kwargs: None


@injects("gathered-weights-lost-on-one-replica")
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


@injects("bucket-reduced-before-the-last-micro-batch")
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
