"""Reference packed attention: exact, per-document causal, context-parallel aware, for any device and dtype.

Megatron's local DotProductAttention refuses packed_seq_params and context parallel, and Transformer Engine
needs a GPU; this module is passed as `core_attention` of the layer spec instead. It believes what it is given:
without packed_seq_params it attends over the whole row, so that lost metadata leaks as it does upstream.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from megatron.core import parallel_state
from megatron.core.transformer.module import MegatronModule
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.checkpoint import checkpoint

from harness.core.packing.arithmetic import zigzag

PART = 1024  # query slots that attend at a time in longer rows


class GatherContext(torch.autograd.Function):
    """All-gather along a new first dimension; backward sums the gradients of all ranks for the own part."""

    @staticmethod
    def forward(ctx: Any, local: Tensor, group: dist.ProcessGroup) -> Tensor:
        ctx.group = group
        parts = [torch.empty_like(local) for _ in range(group.size())]
        dist.all_gather(parts, local.contiguous(), group=group)
        return torch.stack(parts)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        grad = grads[0].contiguous()
        dist.all_reduce(grad, group=ctx.group)
        return grad[ctx.group.rank()], None


class ReferenceAttention(MegatronModule):  # type: ignore[misc]
    """core_attention with the interface of megatron.core.transformer.dot_product_attention (0.14 to 0.19)."""

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
        bounds = (packed_seq_params.cu_seqlens_q if padded is None else padded).tolist()
        query, key, value = (part.squeeze(1) if part.dim() == 4 else part for part in (query, key, value))
        batched = [part.unsqueeze(1) for part in (query, key, value)]
        return self._attend(*batched, bounds=bounds).squeeze(1)

    def _unpacked(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        slots = query.size(0) * parallel_state.get_context_parallel_world_size()
        return self._attend(query, key, value, bounds=[0, slots])

    def _attend(self, query: Tensor, key: Tensor, value: Tensor, *, bounds: list[int]) -> Tensor:
        """Causal attention inside each segment; inputs [s, b, heads, dim] hold this context rank's slots."""
        mine = torch.arange(bounds[-1], device=query.device)
        group = parallel_state.get_context_parallel_group()
        if group.size() > 1:
            shares = [torch.tensor(zigzag(bounds, group.size(), rank)) for rank in range(group.size())]
            mine = shares[group.rank()].to(query.device)
            back = torch.argsort(torch.cat(shares)).to(query.device)
            both = GatherContext.apply(torch.stack([key, value]), group)  # [cp, 2, s, b, kv, dim]
            key, value = both.transpose(0, 1).flatten(1, 2)[:, back]
        repeats = query.size(2) // key.size(2)
        query, key, value = (part.permute(1, 2, 0, 3) for part in (query, key, value))  # [b, heads, s, dim]
        if repeats > 1:
            key, value = key.repeat_interleave(repeats, 1), value.repeat_interleave(repeats, 1)
        out = _in_parts(query, key, value, mine, bounds, self.softmax_scale)
        return out.permute(2, 0, 1, 3).flatten(2)


def _in_parts(
    query: Tensor, key: Tensor, value: Tensor, mine: Tensor, bounds: list[int], scale: float | None
) -> Tensor:
    """Attention of [b, heads, s, dim]. A mask has s x total entries, so of long rows only a part exists at a time: a
    part's mask is made again in backward."""

    def part(query: Tensor, key: Tensor, value: Tensor, mine: Tensor) -> Tensor:
        mask = _segment_mask(bounds, mine)
        with sdpa_kernel(SDPBackend.MATH):  # else cuDNN or a fused kernel may be taken, which round otherwise
            return F.scaled_dot_product_attention(query, key, value, attn_mask=mask, scale=scale)

    if len(mine) <= PART:
        return part(query, key, value, mine)
    parts = zip(torch.split(query, PART, 2), torch.split(mine, PART))
    done = [
        checkpoint(part, some, key, value, slots, use_reentrant=False, preserve_rng_state=False)
        for some, slots in parts
    ]
    return torch.cat(done, 2)


def _segment_mask(bounds: list[int], mine: Tensor) -> Tensor:
    """Boolean [len(mine), total]: same segment and not later. Slots after the last bound form no segment."""
    slots = torch.arange(bounds[-1], device=mine.device)
    segment = torch.searchsorted(torch.tensor(bounds[1:], device=mine.device), slots, right=True)
    same = segment[mine][:, None] == segment[None, :]
    return same & (slots[None, :] <= mine[:, None])
