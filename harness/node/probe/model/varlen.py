"""Attention by torch's own variable-length kernels (FlashAttention, or cuDNN on Hopper and Blackwell).

| torch | varlen_attn(query, key, value, cu_seq_q, cu_seq_k, max_q, max_k, ...) |
|---|---|
| 2.10 | is_causal |
| from 2.11 | window_size (-1, 0) for causal, scale; enable_gqa from when it is in the signature |

Read in torch 2.15; the kernels take fp16 and bf16 on CUDA and have not run yet. On the CPU the module is tested with an
implementation of the contract in the kernel's place.
"""

from __future__ import annotations

import inspect
from typing import Any

import torch
from megatron.core.transformer.module import MegatronModule
from torch import Tensor


def varlen_functions() -> Any:
    """torch.nn.attention.varlen; ImportError before torch 2.10."""
    import torch.nn.attention.varlen as module

    return module


class VarlenAttention(MegatronModule):  # type: ignore[misc]
    """core_attention with the interface of megatron.core.transformer.dot_product_attention (0.14 to 0.19).

    Documents are attended over their slots: padding follows a document's tokens, so causal attention keeps it out of
    them. That asks no value of the device: offsets stay there, and max_seqlen comes as an int.
    """

    def __init__(self, config: Any, layer_number: int, softmax_scale: float | None = None, **_: Any) -> None:
        super().__init__(config=config)
        self.layer_number = layer_number
        self.softmax_scale = softmax_scale

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
        """[t, heads, dim] packed, or [s, b, heads, dim] unpacked; returns [t, heads * dim] or [s, b, heads * dim]."""
        if packed_seq_params is None:
            return self._unpacked(query, key, value)
        padded = packed_seq_params.cu_seqlens_q_padded
        offsets = packed_seq_params.cu_seqlens_q if padded is None else padded
        longest = int(packed_seq_params.max_seqlen_q)
        parts = [part.squeeze(1) if part.dim() == 4 else part for part in (query, key, value)]
        return self._attend(*parts, offsets=offsets, longest=longest).flatten(1)

    def _unpacked(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        length, rows = query.shape[:2]
        offsets = torch.arange(0, (rows + 1) * length, length, dtype=torch.int32, device=query.device)
        parts = [part.transpose(0, 1).flatten(0, 1) for part in (query, key, value)]
        out = self._attend(*parts, offsets=offsets, longest=length)
        return out.view(rows, length, -1).transpose(0, 1)

    def _attend(self, query: Tensor, key: Tensor, value: Tensor, *, offsets: Tensor, longest: int) -> Tensor:
        """[t, heads, dim] each; key and value may have fewer heads, each shared by equally many query heads."""
        attend = varlen_functions().varlen_attn
        known = inspect.signature(attend).parameters
        more: dict[str, Any] = {"window_size": (-1, 0)} if "window_size" in known else {"is_causal": True}
        if self.softmax_scale is not None:
            more["scale"] = self.softmax_scale
        if key.size(1) != query.size(1):
            if "enable_gqa" in known:
                more["enable_gqa"] = True
            else:
                repeats = query.size(1) // key.size(1)
                key, value = key.repeat_interleave(repeats, 1), value.repeat_interleave(repeats, 1)
        # One tensor of offsets for both: cuDNN takes causal packed rows only then.
        parts = (part.contiguous() for part in (query, key, value))
        out: Tensor = attend(*parts, offsets, offsets, longest, longest, **more)
        return out
