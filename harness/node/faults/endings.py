"""Injections of classes hang, crash and infrastructure."""

from __future__ import annotations

import os
import signal
from typing import Any, NoReturn

import torch
import torch.distributed as dist

from harness.node.data_paths.base import Batch, RankContext
from harness.node.faults.fault import Fault
from harness.node.probe.model.gpt import unwrap

_GARBAGE = 2**44  # positions: their table exceeds the memory of any machine


class RankEntersACollectiveAlone(Fault):
    def on_step(self, context: RankContext, step: int) -> None:
        super().on_step(context, step)
        if step == 1 and context.place.tp == 1:
            dist.barrier()


class MicroBatchCountsDiffer(Fault):
    def micro_batches(self, count: int, context: RankContext, step: int) -> int:
        return count - 1 if context.place.pp == 1 else count


class ExceptionAtStep1(Fault):
    def on_step(self, context: RankContext, step: int) -> None:
        super().on_step(context, step)
        if step == 1 and context.place.tp == 1:
            raise TypeError("injected: forward() got an unexpected keyword argument 'max_seqlen'")


class RotaryTableOfGarbageLength(Fault):
    def on_model(self, chunks: list[Any], context: RankContext) -> None:
        self.table = unwrap(chunks[0]).rotary_pos_emb

    def on_step(self, context: RankContext, step: int) -> None:
        super().on_step(context, step)
        if step == 1:
            self.table(_GARBAGE)


class DocumentShorterThanTheAlignment(Fault):
    def on_batch(self, batch: Batch, context: RankContext, chunk: int, micro_batch: int) -> Batch:
        chunks = 2 * context.config.layout.cp
        for item in self.truths(context)[micro_batch].plan.placed:
            if context.place.cp == 1 and item.document.length < chunks:
                # As the packers of three projects do: fill a buffer of whole chunks from a shorter document.
                torch.empty(chunks)[:] = torch.empty(item.document.length)
        return batch


class NativeCrashInAKernel(Fault):
    def on_model(self, chunks: list[Any], context: RankContext) -> None:
        def abort(module: Any, args: Any) -> NoReturn:
            os.abort()

        if context.place.pp == 1:
            unwrap(chunks[0]).decoder.layers[0].self_attention.core_attention.register_forward_pre_hook(abort)


class StaticPipelineShapes(Fault):
    def on_model(self, chunks: list[Any], context: RankContext) -> None:
        for chunk in chunks:
            chunk.config.variable_seq_lengths = False


class RankKilledFromOutside(Fault):
    def on_step(self, context: RankContext, step: int) -> None:
        super().on_step(context, step)
        if step == 1 and context.place.tp == 1:
            os.kill(os.getpid(), signal.SIGKILL)
