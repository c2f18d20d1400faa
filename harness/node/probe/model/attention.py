"""Reference packed attention: exact, causal per document, context-parallel aware, for any device and dtype; with sinks
and windows.

Megatron's local DotProductAttention refuses packed_seq_params and context parallelism, and Transformer Engine needs a
GPU; layer specs get this module instead.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.checkpoint import checkpoint

from harness.core.packing.arithmetic import zigzag
from harness.node.probe.model.core_attention import CoreAttention

PART = 1024  # query slots per part; longer rows are split into parts


class GatherContext(torch.autograd.Function):
    """All-gather [...] to [ranks, ...]; backward all-reduces the gradient and returns this rank's part."""

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


class ReferenceAttention(CoreAttention):
    """Exact causal attention inside each segment, as one masked product per part of the row."""

    def packed(self, query: Tensor, key: Tensor, value: Tensor, offsets: Tensor, params: Any) -> Tensor:
        batched = [part.unsqueeze(1) for part in (query, key, value)]
        return self._attend(*batched, bounds=offsets.tolist()).squeeze(1)

    def unpacked(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        slots = query.size(0) * self.cp_group.size()
        return self._attend(query, key, value, bounds=[0, slots])

    def _attend(self, query: Tensor, key: Tensor, value: Tensor, *, bounds: list[int]) -> Tensor:
        """Causal attention inside each segment; inputs [s, b, heads, dim]: this context-parallel rank's slots."""
        mine = torch.arange(bounds[-1], device=query.device)
        group = self.cp_group
        if group.size() > 1:
            shares = [torch.tensor(zigzag(bounds, group.size(), rank)) for rank in range(group.size())]
            mine = shares[group.rank()].to(query.device)
            order = torch.argsort(torch.cat(shares)).to(query.device)
            sizes = [key.size(-1), value.size(-1)]  # latent attention may have others for values
            gathered = GatherContext.apply(torch.cat([key, value], -1), group)  # [cp, s, b, kv, dims]
            key, value = gathered.flatten(0, 1)[order].split(sizes, -1)
        repeats = query.size(2) // key.size(2)
        query, key, value = (part.permute(1, 2, 0, 3) for part in (query, key, value))  # [b, heads, s, dim]
        if repeats > 1:
            key, value = key.repeat_interleave(repeats, 1), value.repeat_interleave(repeats, 1)
        mask = partial(_segment_mask, bounds, window=self.window)
        out = _in_parts(query, key, value, mine, mask, self.softmax_scale, self.softmax_offset)
        return out.permute(2, 0, 1, 3).flatten(2)


def _in_parts(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mine: Tensor,
    mask_of: Callable[[Tensor], Tensor],
    scale: float | None,
    sink: Tensor | None = None,
) -> Tensor:
    """Attention of [b, heads, s, dim] with a mask of query slots; `sink`: a further logit per head, whose share of the
    weights is dropped.

    The mask has s x total entries, so long rows are processed in parts, and a part's mask is recomputed in backward.
    """
    if sink is not None:  # a key without a value, whose score is the mask's last column
        key, value = F.pad(key, (0, 0, 0, 1)), F.pad(value, (0, 0, 0, 1))

    def part(query: Tensor, key: Tensor, value: Tensor, mine: Tensor) -> Tensor:
        mask = mask_of(mine)
        if sink is not None:
            mask = _with_sink(mask, sink.to(query.dtype))
        with sdpa_kernel(SDPBackend.MATH):  # cuDNN and fused kernels round differently
            return F.scaled_dot_product_attention(query, key, value, attn_mask=mask, scale=scale)

    if len(mine) <= PART:
        return part(query, key, value, mine)
    parts = zip(torch.split(query, PART, 2), torch.split(mine, PART))
    done = [
        checkpoint(part, some, key, value, slots, use_reentrant=False, preserve_rng_state=False)
        for some, slots in parts
    ]
    return torch.cat(done, 2)


def _with_sink(mask: Tensor, sink: Tensor) -> Tensor:
    """What is added to scores, [1, heads, s, total + 1]: from a boolean mask [s, total] and a logit per head."""
    added = torch.zeros(mask.shape, dtype=sink.dtype, device=mask.device).masked_fill(~mask, -torch.inf)
    heads, (slots, total) = len(sink), mask.shape
    columns = [added.expand(1, heads, slots, total), sink.view(1, heads, 1, 1).expand(1, heads, slots, 1)]
    return torch.cat(columns, -1)


def _segment_mask(bounds: list[int], mine: Tensor, *, window: int | None = None) -> Tensor:
    """Boolean [len(mine), total]: whether a slot is in the same segment, not later, and not before the window."""
    slots = torch.arange(bounds[-1], device=mine.device)
    segment = torch.searchsorted(torch.tensor(bounds[1:], device=mine.device), slots, right=True)
    same = segment[mine][:, None] == segment[None, :]
    back = mine[:, None] - slots[None, :]
    seen = same & (back >= 0)
    return seen if window is None else seen & (back <= window)
