"""The contract of torch.nn.attention.varlen.varlen_attn as plain float64 loops, for tests without its kernels."""

from __future__ import annotations

import itertools

import torch
from torch import Tensor


def varlen_attn(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    cu_seq_q: Tensor,
    cu_seq_k: Tensor,
    max_q: int,
    max_k: int,
    *,
    scale: float | None = None,
    window_size: tuple[int, int] = (-1, -1),
    enable_gqa: bool = False,
) -> Tensor:
    """Causal attention inside each segment, [t, heads, dim]; NaN for slots outside segments, which the kernel omits.

    The kernel's requirements are asserted: int32 offsets, Python ints, contiguous inputs, one tensor of offsets (for
    cuDNN), grouped heads only with enable_gqa, and no segment longer than max_q.
    """
    assert cu_seq_q is cu_seq_k
    assert cu_seq_q.dtype == torch.int32
    assert type(max_q) is int
    assert max_q == max_k
    assert window_size == (-1, 0)
    assert all(part.is_contiguous() for part in (query, key, value))
    groups = query.shape[1] // key.shape[1]
    assert enable_gqa or groups == 1
    factor = query.shape[2] ** -0.5 if scale is None else scale
    rows: list[Tensor | None] = [None] * query.shape[0]
    for first, last in itertools.pairwise(cu_seq_q.tolist()):
        assert last - first <= max_q
        for slot in range(first, last):
            past = slice(first, slot + 1)
            heads = []
            for head in range(query.shape[1]):
                scores = key[past, head // groups].double() @ query[slot, head].double() * factor
                heads.append(torch.softmax(scores, 0) @ value[past, head // groups].double())
            rows[slot] = torch.stack(heads)
    unset = torch.full(query.shape[1:2] + value.shape[2:], torch.nan, dtype=torch.float64)
    return torch.stack([unset if row is None else row for row in rows]).to(query.dtype)


def varlen_attn_of_torch_2_10(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    cu_seq_q: Tensor,
    cu_seq_k: Tensor,
    max_q: int,
    max_k: int,
    is_causal: bool = False,
) -> Tensor:
    """The same with the signature of torch 2.10."""
    window = (-1, 0) if is_causal else (-1, -1)
    return varlen_attn(query, key, value, cu_seq_q, cu_seq_k, max_q, max_k, window_size=window)
