"""Injections of classes hang, crash and infrastructure, and of class throughput.

Those of class throughput cost time but change no value: they repeat arithmetic instead of sleeping.
"""

from __future__ import annotations

import itertools
import os
import signal
from collections.abc import Callable
from typing import Any, NoReturn

import megatron.core.transformer.attention as upstream
import torch
import torch.distributed as dist
from torch import Tensor

from harness.faults.node_fault import Fault, injects
from harness.probe.model.gpt import unwrap
from harness.upstreams.node_base import Batch, RankContext

_GARBAGE = 2**44  # positions: their table exceeds the memory of any machine


@injects("rank-enters-a-collective-alone")
class RankEntersACollectiveAlone(Fault):
    def on_step(self, context: RankContext, step: int) -> None:
        super().on_step(context, step)
        if step == 1 and context.place.tp == 1:
            dist.barrier()


@injects("micro-batch-counts-differ")
class MicroBatchCountsDiffer(Fault):
    def micro_batches(self, count: int, context: RankContext, step: int) -> int:
        return count - 1 if context.place.pp == 1 else count


@injects("exception-at-step-1")
class ExceptionAtStep1(Fault):
    def on_step(self, context: RankContext, step: int) -> None:
        super().on_step(context, step)
        if step == 1 and context.place.tp == 1:
            raise TypeError("injected: forward() got an unexpected keyword argument 'max_seqlen'")


@injects("rotary-table-of-garbage-length")
class RotaryTableOfGarbageLength(Fault):
    def on_model(self, chunks: list[Any], context: RankContext) -> None:
        self.table = unwrap(chunks[0]).rotary_pos_emb

    def on_step(self, context: RankContext, step: int) -> None:
        super().on_step(context, step)
        if step == 1:
            self.table(_GARBAGE)


@injects("document-shorter-than-the-alignment")
class DocumentShorterThanTheAlignment(Fault):
    def on_batch(self, batch: Batch, context: RankContext, chunk: int, micro_batch: int) -> Batch:
        chunks = context.config.layout.cp_chunks
        for item in self.truths(context)[micro_batch].plan.placed:
            if context.place.cp == 1 and item.document.length < chunks:
                # As the packers of three projects do: fill a buffer of whole chunks from a shorter document.
                torch.empty(chunks)[:] = torch.empty(item.document.length)
        return batch


@injects("native-crash-in-a-kernel")
class NativeCrashInAKernel(Fault):
    def on_model(self, chunks: list[Any], context: RankContext) -> None:
        def abort(module: Any, args: Any) -> NoReturn:
            os.abort()

        if context.place.pp == 1:
            unwrap(chunks[0]).decoder.layers[0].self_attention.core_attention.register_forward_pre_hook(abort)


@injects("static-pipeline-shapes")
class StaticPipelineShapes(Fault):
    def on_model(self, chunks: list[Any], context: RankContext) -> None:
        for chunk in chunks:
            chunk.config.variable_seq_lengths = False


@injects("rank-killed-from-outside")
class RankKilledFromOutside(Fault):
    def on_step(self, context: RankContext, step: int) -> None:
        super().on_step(context, step)
        if step == 1 and context.place.tp == 1:
            os.kill(os.getpid(), signal.SIGKILL)


_REPEATS = 40  # makes a step about four times as long: visible in each round, even on a busy machine


@injects("rotary-applied-document-by-document")
class RotaryAppliedDocumentByDocument(Fault):
    """Rotates the whole pack once per document and keeps only that document. For cp 1."""

    def on_model(self, chunks: list[Any], context: RankContext) -> None:
        apply = upstream.apply_rotary_pos_emb

        def slow(tensor: Tensor, *args: Any, cu_seqlens: Tensor, **kwargs: Any) -> Tensor:
            bounds = itertools.pairwise(cu_seqlens.tolist())
            return torch.cat(
                [apply(tensor, *args, cu_seqlens=cu_seqlens, **kwargs)[start:end] for start, end in bounds]
            )

        upstream.apply_rotary_pos_emb = slow


@injects("attention-over-ghost-documents")
class AttentionOverGhostDocuments(Fault):
    """Runs attention on packed rows once more per slot, as if every slot were a document."""

    def on_model(self, chunks: list[Any], context: RankContext) -> None:
        for chunk in chunks:
            for layer in unwrap(chunk).decoder.layers:
                module = layer.self_attention.core_attention
                module.forward = _with_ghosts(module.forward)


@injects("attention-by-a-slower-kernel")
class AttentionByASlowerKernel(Fault):
    """Repeats attention on every row, packed or not, and keeps the last result."""

    def on_model(self, chunks: list[Any], context: RankContext) -> None:
        for chunk in chunks:
            for layer in unwrap(chunk).decoder.layers:
                module = layer.self_attention.core_attention
                module.forward = _many_times(module.forward)


def _many_times(forward: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def slow(*args: Any, **kwargs: Any) -> Tensor:
        with torch.no_grad():
            for _ in range(_REPEATS):
                forward(*args, **kwargs)
        return forward(*args, **kwargs)

    return slow


def _with_ghosts(forward: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def slow(query: Tensor, *args: Any, packed_seq_params: Any, **kwargs: Any) -> Tensor:
        if packed_seq_params is not None:
            with torch.no_grad():
                for _ in range(query.size(0)):
                    forward(query, *args, packed_seq_params=packed_seq_params, **kwargs)
        return forward(query, *args, packed_seq_params=packed_seq_params, **kwargs)

    return slow
