"""all_gather and reduce_scatter of tensors with different sizes, which NCCL has and gloo lacks.

Ranks of an expert get different numbers of tokens (megatron.core.tensor_parallel.mappings with split sizes). As in
torch's NCCL backend, one broadcast or one reduction for each rank. Calls with equal sizes are gloo's own, but not
reduce_scatter of CUDA tensors, which gloo of torch 2.11 lacks.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

_all_gather, _reduce_scatter = dist.all_gather, dist.reduce_scatter


def all_gather(tensor_list: Sequence[Tensor], tensor: Tensor, group: Any = None, async_op: bool = False) -> Any:
    """Gather as torch.distributed.all_gather; with different sizes synchronous only."""
    if _equal(tensor_list) or async_op:
        return _all_gather(list(tensor_list), tensor, group=group, async_op=async_op)
    rank = dist.get_rank(group)
    for index, output in enumerate(tensor_list):
        if index == rank:
            output.copy_(tensor)
        # An expert may get no token at all, and gloo refuses empty tensors.
        if output.numel():
            part = output.contiguous()
            dist.broadcast(part, src=_global(group, index), group=group)
            output.copy_(part)
    return None


def reduce_scatter(
    output: Tensor, input_list: Sequence[Tensor], op: Any = dist.ReduceOp.SUM, group: Any = None, async_op: bool = False
) -> Any:
    """Reduce and scatter as torch.distributed.reduce_scatter; with different sizes synchronous only."""
    # Asynchronous calls go to torch, whose error for what gloo cannot do is better than a result that nobody waits for.
    if async_op or (_equal(input_list) and not output.is_cuda):
        return _reduce_scatter(output, list(input_list), op=op, group=group, async_op=async_op)
    rank = dist.get_rank(group)
    for index, part in enumerate(input_list):
        if part.numel():
            # A clone: gloo's reduce leaves partial sums in the tensors of the other ranks.
            total = part.detach().clone(memory_format=torch.contiguous_format)
            dist.reduce(total, dst=_global(group, index), op=op, group=group)
            if index == rank:
                output.copy_(total)
    return None


def gather_with_gradient(tensor: Tensor, group: Any = dist.group.WORLD) -> tuple[Tensor, ...]:
    """Gather as torch.distributed.nn.functional.all_gather, whose backward over gloo fails in groups without rank 0
    (2.15).
    """
    gathered: tuple[Tensor, ...] = _Gathered.apply(group, tensor)
    return gathered


class _Gathered(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, group: Any, tensor: Tensor) -> tuple[Tensor, ...]:
        ctx.group = group
        parts = [torch.empty_like(tensor) for _ in range(dist.get_world_size(group))]
        _all_gather(parts, tensor.contiguous(), group=group)
        return tuple(parts)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[None, Tensor]:
        own_gradient = torch.empty_like(gradients[0])
        reduce_scatter(own_gradient, [gradient.contiguous() for gradient in gradients], group=ctx.group)
        return None, own_gradient


def _equal(tensors: Sequence[Tensor]) -> bool:
    return len({tensor.shape for tensor in tensors}) <= 1


def _global(group: Any, rank: int) -> int:
    return rank if group is None else dist.get_global_rank(group, rank)
