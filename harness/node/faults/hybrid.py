"""Injections of class model in hybrid models.

They replace the kernels that megatron.core.ssm.gated_delta_net.gdn calls (0.19), or change the arguments of Mamba.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from harness.node.data_paths.base import Batch, RankContext
from harness.node.faults.fault import Fault
from harness.node.faults.metadata import changed
from harness.node.probe.model.gpt import unwrap

_LAYER = "megatron.core.ssm.gated_delta_net.gdn"


class SequenceIndexDropped(Fault):
    def on_batch(self, batch: Batch, context: RankContext, chunk: int, micro_batch: int) -> Batch:
        return replace(batch, params=changed(batch.params, total_tokens=None, seq_idx=None))


def _as_one_document(kernel: Callable[..., Any]) -> Callable[..., Any]:
    def wrong(*args: Any, cu_seqlens: Tensor | None = None, **kwargs: Any) -> Any:
        return kernel(*args, cu_seqlens=None if cu_seqlens is None else cu_seqlens[[0, -1]], **kwargs)

    return wrong


class DeltaStateCrossesDocuments(Fault):
    def on_model(self, chunks: list[Any], context: RankContext) -> None:
        if context.place.tp == 1:
            for layer in unwrap(chunks[0]).decoder.layers:
                if hasattr(layer.self_attention, "gated_delta_rule"):
                    layer.self_attention.gated_delta_rule = _as_one_document(layer.self_attention.gated_delta_rule)


class ConvolutionCrossesDocuments(Fault):
    def on_model(self, chunks: list[Any], context: RankContext) -> None:
        module: Any = importlib.import_module(_LAYER)
        module.causal_conv1d = _as_one_document(module.causal_conv1d)


class DeltaSlotsInZigzagOrder(Fault):
    def on_model(self, chunks: list[Any], context: RankContext) -> None:
        module: Any = importlib.import_module(_LAYER)

        def unchanged(cu_seqlens: Tensor, cp_size: int, slots: int) -> tuple[Tensor, Tensor]:
            order = torch.arange(slots, device=cu_seqlens.device)
            return order, order

        module._build_thd_cp_a2a_perm = unchanged
