"""Injections that change no number and cost time: more of the same arithmetic, not a sleep."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import megatron.core.transformer.attention as upstream
import torch
from torch import Tensor

from harness.node.data_paths.base import RankContext
from harness.node.faults.seams import Fault
from harness.node.probe.model.gpt import unwrap

_AGAIN = 40  # a step takes about four times as long: each round shows it, also beside other work


class RotaryAppliedDocumentByDocument(Fault):
    """The pack is rotated once for each document, of which that document is kept. One context rank."""

    def on_model(self, chunks: list[Any], context: RankContext) -> None:
        apply = upstream.apply_rotary_pos_emb

        def slow(tensor: Tensor, *args: Any, cu_seqlens: Tensor, **kwargs: Any) -> Tensor:
            bounds = itertools.pairwise(cu_seqlens.tolist())
            return torch.cat(
                [apply(tensor, *args, cu_seqlens=cu_seqlens, **kwargs)[start:end] for start, end in bounds]
            )

        upstream.apply_rotary_pos_emb = slow


class AttentionOverGhostDocuments(Fault):
    """Attention to packed rows runs once more for each slot of the row, as if that were the number of documents."""

    def on_model(self, chunks: list[Any], context: RankContext) -> None:
        for chunk in chunks:
            for layer in unwrap(chunk).decoder.layers:
                module = layer.self_attention.core_attention
                module.forward = _with_ghosts(module.forward)


class AttentionByASlowerKernel(Fault):
    """Attention to any row, packed or not, is computed again and again, and the last result kept."""

    def on_model(self, chunks: list[Any], context: RankContext) -> None:
        for chunk in chunks:
            for layer in unwrap(chunk).decoder.layers:
                module = layer.self_attention.core_attention
                module.forward = _many_times(module.forward)


def _many_times(forward: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def slow(*args: Any, **kwargs: Any) -> Tensor:
        with torch.no_grad():
            for _ in range(_AGAIN):
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
