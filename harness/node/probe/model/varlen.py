"""Attention by torch's variable-length kernels (FlashAttention, or cuDNN on Hopper and Blackwell).

| torch | varlen_attn(query, key, value, cu_seq_q, cu_seq_k, max_q, max_k, ...) |
|---|---|
| 2.10 | is_causal |
| from 2.11 | window_size (-1, 0) for causal, scale; enable_gqa in later releases, read from the signature |

Checked against the source of torch 2.15. The kernels take fp16 and bf16 on CUDA and have not been run yet; on the CPU
the module is tested with an implementation of the same contract.
"""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch import Tensor

from harness.node.probe.model.core_attention import CoreAttention


def varlen_functions() -> Any:
    """torch.nn.attention.varlen; ImportError before torch 2.10."""
    import torch.nn.attention.varlen as module

    return module


class VarlenAttention(CoreAttention):
    """Attention over the slots of each document: padding follows the tokens, so causality keeps it out of them.

    Nothing is read from the GPU: offsets stay on the device, and max_seqlen is an int.
    """

    def packed(self, query: Tensor, key: Tensor, value: Tensor, offsets: Tensor, params: Any) -> Tensor:
        longest = int(params.max_seqlen_q)
        return self._attend(query, key, value, offsets=offsets, longest=longest).flatten(1)

    def unpacked(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        length, rows = query.shape[:2]
        offsets = torch.arange(0, (rows + 1) * length, length, dtype=torch.int32, device=query.device)
        parts = [part.transpose(0, 1).flatten(0, 1) for part in (query, key, value)]
        out = self._attend(*parts, offsets=offsets, longest=length)
        return out.view(rows, length, -1).transpose(0, 1)

    def _attend(self, query: Tensor, key: Tensor, value: Tensor, *, offsets: Tensor, longest: int) -> Tensor:
        """Inputs [t, heads, dim], `offsets` [segments + 1] int32; key and value may have fewer heads (GQA)."""
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
        # The same offsets tensor for queries and keys: otherwise cuDNN refuses causal packed rows.
        parts = (part.contiguous() for part in (query, key, value))
        out: Tensor = attend(*parts, offsets, offsets, longest, longest, **more)
        return out
