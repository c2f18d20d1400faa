"""Injections into recurrent layers: they patch the kernels that megatron.core.ssm.gated_delta_net.gdn calls, 0.19, or
change the arguments of Mamba.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from harness.faults.node_fault import Fault, injects
from harness.faults.node_metadata import changed
from harness.probe.model.gpt import unwrap
from harness.upstreams.node_base import Batch, RankContext

_DELTA_NET = "megatron.core.ssm.gated_delta_net.gdn"


@injects("sequence-index-dropped")
class SequenceIndexDropped(Fault):
    """Drop the fields by which Mamba layers tell the documents of a row apart."""

    def on_batch(self, batch: Batch, context: RankContext, chunk: int, micro_batch: int) -> Batch:
        return replace(batch, params=changed(batch.params, total_tokens=None, seq_idx=None))


def _as_one_document(kernel: Callable[..., Any]) -> Callable[..., Any]:
    def wrong(*args: Any, cu_seqlens: Tensor | None = None, **kwargs: Any) -> Any:
        return kernel(*args, cu_seqlens=None if cu_seqlens is None else cu_seqlens[[0, -1]], **kwargs)

    return wrong


@injects("delta-state-crosses-documents")
class DeltaStateCrossesDocuments(Fault):
    """Run the delta rule of one tp rank over the row as if it were one document."""

    def on_model(self, chunks: list[Any], context: RankContext) -> None:
        if context.place.tp == 1:
            for layer in unwrap(chunks[0]).decoder.layers:
                if hasattr(layer.self_attention, "gated_delta_rule"):
                    layer.self_attention.gated_delta_rule = _as_one_document(layer.self_attention.gated_delta_rule)


@injects("convolution-crosses-documents")
class ConvolutionCrossesDocuments(Fault):
    """Run the short convolution over the row as if it were one document."""

    def on_model(self, chunks: list[Any], context: RankContext) -> None:
        module: Any = importlib.import_module(_DELTA_NET)
        module.causal_conv1d = _as_one_document(module.causal_conv1d)


@injects("delta-slots-in-zigzag-order")
class DeltaSlotsInZigzagOrder(Fault):
    """Leave the slots in zigzag order when context ranks exchange heads for tokens."""

    def on_model(self, chunks: list[Any], context: RankContext) -> None:
        module: Any = importlib.import_module(_DELTA_NET)

        def unchanged(cu_seqlens: Tensor, cp_size: int, slots: int) -> tuple[Tensor, Tensor]:
            order = torch.arange(slots, device=cu_seqlens.device)
            return order, order

        module._build_thd_cp_a2a_perm = unchanged
