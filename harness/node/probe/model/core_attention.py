"""Base class of the probe's attention modules, which are passed as `core_attention` of a layer spec."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from typing import Any

import megatron.core.transformer.utils as upstream_utils
from megatron.core import parallel_state
from megatron.core.transformer.dot_product_attention import DotProductAttention
from megatron.core.transformer.enums import AttnMaskType
from megatron.core.transformer.module import MegatronModule
from torch import Tensor
from torch.distributed import ProcessGroup

from harness.core.cell.model import VANILLA


def sink_of_upstream(config: Any, layer_number: int, groups: dict[str, Any]) -> Tensor | None:
    """The logit that upstream adds to each head's scores, [local heads]: a parameter if it is learnable.

    Its creation is upstream's, and with it what upstream knows of the parameter: whether it is split over tp. None
    without sinks. `groups`: the keyword arguments that carry process groups.
    """
    if getattr(config, "softmax_type", VANILLA) == VANILLA:
        return None
    alone = copy.copy(config)
    alone.context_parallel_size = 1  # upstream's module refuses more, in its forward only
    module = DotProductAttention(alone, layer_number, AttnMaskType.causal, "self", **groups)
    sink: Tensor = module.softmax_offset
    return sink


def window_of_upstream(config: Any, layer_number: int) -> int | None:
    """Tokens before its own that a token of this layer attends to; None: all. `layer_number`: from 1."""
    window = getattr(config, "window_size", None)
    return None if window is None or not is_window_layer(config, layer_number) else int(window[0])


def is_window_layer(config: Any, layer_number: int) -> bool:
    """Whether a layer of a model with windows has one: upstream's decision, in releases that have exceptions (0.15)."""
    if not hasattr(config, "window_attn_skip_freq"):
        return True
    return bool(
        upstream_utils.is_layer_window_attention(config.window_size, config.window_attn_skip_freq, layer_number)
    )


class CoreAttention(MegatronModule, ABC):  # type: ignore[misc]
    """Has the interface of megatron.core.transformer.dot_product_attention.DotProductAttention (0.14 to 0.19).

    Without packed_seq_params it attends over the whole row, so that documents leak into each other as in upstream.
    """

    def __init__(self, config: Any, layer_number: int, softmax_scale: float | None = None, **more: Any) -> None:
        super().__init__(config=config)
        self.layer_number = layer_number
        self.softmax_scale = softmax_scale
        self.attn_mask_type = more.get("attn_mask_type")  # for calls that pass none
        groups = {name: value for name, value in more.items() if name == "pg_collection"}
        self.groups = groups.get("pg_collection")
        self.softmax_offset = sink_of_upstream(config, layer_number, groups)
        self.window = window_of_upstream(config, layer_number)

    @property
    def cp_group(self) -> ProcessGroup:
        """The context-parallel group: the model's, or Megatron's global one in releases that pass none to attention."""
        found: ProcessGroup = getattr(self.groups, "cp", None) or parallel_state.get_context_parallel_group()
        return found

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Tensor | None,
        attn_mask_type: Any = None,
        attention_bias: Tensor | None = None,
        packed_seq_params: Any = None,
    ) -> Tensor:
        """[t, heads, dim] (packed, THD) to [t, heads * dim], or [s, b, heads, dim] (unpacked) to [s, b, heads * dim].

        Packed inputs may also be [t, 1, heads, dim]. Masks and bias are ignored: attention is causal inside segments,
        which are bounded by cu_seqlens_q_padded if it is set, else by cu_seqlens_q.
        """
        if packed_seq_params is None:
            return self.unpacked(query, key, value)
        padded = packed_seq_params.cu_seqlens_q_padded
        offsets = packed_seq_params.cu_seqlens_q if padded is None else padded
        query, key, value = (part.squeeze(1) if part.dim() == 4 else part for part in (query, key, value))
        return self.packed(query, key, value, offsets, packed_seq_params)

    @abstractmethod
    def unpacked(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """Attention over whole rows: [s, b, heads, dim] to [s, b, heads * dim]."""

    @abstractmethod
    def packed(self, query: Tensor, key: Tensor, value: Tensor, offsets: Tensor, params: Any) -> Tensor:
        """Attention inside segments: [t, heads, dim] to [t, heads * dim].

        `offsets`: [segments + 1] int32, bounds of the segments in the merged row; `params`: the PackedSeqParams.
        """
