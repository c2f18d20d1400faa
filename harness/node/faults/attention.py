"""Injections into the model: attention and rotary positions are wrong although they receive the right metadata.

They replace `forward` of the attention modules, which runs after the hook that records the metadata, and
`apply_rotary_pos_emb` in megatron.core.transformer.attention (megatron-core 0.13 to 0.19).
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import megatron.core.transformer.attention as upstream
import torch
from torch import Tensor

from harness.node.data_paths.base import RankContext
from harness.node.faults.fault import Fault
from harness.node.faults.metadata import with_offsets
from harness.node.probe.model import attention
from harness.node.probe.model.gpt import unwrap
from harness.node.probe.weights import named_parameters
from harness.oracle.drawing import INITIAL_STD, draw


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


class AttentionIgnoresDocuments(Fault):
    def on_model(self, chunks: list[Any], context: RankContext) -> None:
        misread(chunks, _one_document)


class AttentionIgnoresDocumentsInOneLayer(Fault):
    def on_model(self, chunks: list[Any], context: RankContext) -> None:
        misread(chunks, _one_document, {5})


class AttentionIgnoresDocumentsInBf16(Fault):
    def on_model(self, chunks: list[Any], context: RankContext) -> None:
        misread(chunks, _one_document, {2})


class KernelBoundaryOffByOneOnOneTpRank(Fault):
    def on_model(self, chunks: list[Any], context: RankContext) -> None:
        if context.place.tp == 1:
            misread(chunks, lambda offsets: torch.cat([offsets[:1], offsets[1:-1] + 1, offsets[-1:]]))


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


class RopeOfAnotherCpRank(Fault):
    def on_model(self, chunks: list[Any], context: RankContext) -> None:
        apply = upstream.apply_rotary_pos_emb

        def wrong(*args: Any, cp_group: Any, **kwargs: Any) -> Tensor:
            return apply(*args, cp_group=_RankZero(cp_group), **kwargs)  # type: ignore[no-any-return]

        if context.place.cp == 1:
            upstream.apply_rotary_pos_emb = wrong


class OutputLayerShardOfAnotherTpRank(Fault):
    def on_model(self, chunks: list[Any], context: RankContext) -> None:
        if context.place.tp != 1:
            return
        for item in named_parameters(unwrap(chunks[-1]), tp_rank=0, tp_size=context.config.layout.tp):
            if item.name == "output_layer.weight":
                full = draw("weight", item.name, item.shard.full, context.config.train.seed) * INITIAL_STD
                item.parameter.data.copy_(item.shard.take(full))


class LossDividedByDocumentsPerPack(Fault):
    def on_model(self, chunks: list[Any], context: RankContext) -> None:
        def divide(module: Any, args: Any, kwargs: Any, losses: Tensor) -> Tensor:
            return losses / (len(kwargs["packed_seq_params"].cu_seqlens_q) - 1)

        unwrap(chunks[-1]).register_forward_hook(divide, with_kwargs=True)


class AttentionBackwardNotReducedOverCp(Fault):
    def on_model(self, chunks: list[Any], context: RankContext) -> None:
        def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
            return grads[0][ctx.group.rank()], None

        attention.GatherContext.backward = staticmethod(backward)  # type: ignore[method-assign]
