"""Injections that cost time but change no value: they repeat arithmetic instead of sleeping."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import megatron.core.transformer.attention as upstream
import torch
from torch import Tensor

from harness.node.data_paths.base import RankContext
from harness.node.faults.fault import Fault
from harness.node.probe.model.gpt import unwrap

_REPEATS = 40  # makes a step about four times as long: visible in each round, even on a busy machine


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


class AttentionOverGhostDocuments(Fault):
    """Runs attention on packed rows once more per slot, as if every slot were a document."""

    def on_model(self, chunks: list[Any], context: RankContext) -> None:
        for chunk in chunks:
            for layer in unwrap(chunk).decoder.layers:
                module = layer.self_attention.core_attention
                module.forward = _with_ghosts(module.forward)


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
