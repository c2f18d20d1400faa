"""Stubs for what torch's gloo lacks for CUDA tensors, in ranks that share a GPU: NCCL takes one rank per GPU.

ProcessGroupGloo refuses CUDA tensors in allreduce_coalesced, by which Megatron reduces gradients, and reads the address
of a tensor that it sends or receives as one of host memory (torch 2.11 to 2.15). The stubs go through host memory, or
call what gloo has, and change no value.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from harness.runtime.device.uneven_collectives import all_gather, gather_with_gradient, reduce_scatter

_Group: Any = dist.ProcessGroup
_send, _recv = _Group.send, _Group.recv


class _Works:
    """In place of a torch.distributed.Work: several of them, and what is done once they have ended.

    `held`: the tensors that gloo reads or writes until then.
    """

    def __init__(self, works: Sequence[Any], held: Sequence[Tensor], then: Callable[[], None] = lambda: None) -> None:
        self._works, self._held, self._then = works, held, then

    def wait(self, *timeout: Any) -> bool:
        for work in self._works:
            work.wait(*timeout)
        # Upstream may wait twice; the copy back must happen once, or it would overwrite what was computed since.
        self._works, then, self._then = [], self._then, lambda: None
        then()
        return True

    def is_completed(self) -> bool:
        return all(work.is_completed() for work in self._works)


def _allreduce_coalesced(group: Any, tensors: Sequence[Tensor], options: Any = None) -> _Works:
    single = dist.AllreduceOptions()
    if options is not None:
        single.reduceOp = options.reduceOp
    # One by one, since gloo's coalesced form is what refuses CUDA tensors.
    return _Works([group.allreduce([tensor], single) for tensor in tensors], tensors)


def _send_by_host(group: Any, tensors: Sequence[Tensor], *where: int) -> _Works:
    hosts = [_host_like(tensor).copy_(tensor.detach()) for tensor in tensors]  # waits for the kernels before it
    return _Works([_send(group, hosts, *where)], hosts)


def _receive_by_host(group: Any, tensors: Sequence[Tensor], *where: int) -> _Works:
    hosts = [_host_like(tensor) for tensor in tensors]

    def then() -> None:
        for tensor, host in zip(tensors, hosts):
            tensor.detach().copy_(host)

    return _Works([_recv(group, hosts, *where)], hosts, then)


def _host_like(tensor: Tensor) -> Tensor:
    """Return host memory with the same strides: gloo then refuses a tensor that is not contiguous, as NCCL does."""
    return torch.empty_strided(tensor.size(), tensor.stride(), dtype=tensor.dtype, device="cpu")


def install() -> list[str]:
    """Replace the calls in this process; return their dotted names."""
    stubs = {
        "torch.distributed.all_gather": (dist, all_gather),
        "torch.distributed.reduce_scatter": (dist, reduce_scatter),
        "torch.distributed.ProcessGroup.allreduce_coalesced": (_Group, _allreduce_coalesced),
        "torch.distributed.ProcessGroup.send": (_Group, _send_by_host),
        "torch.distributed.ProcessGroup.recv": (_Group, _receive_by_host),
    }
    if functional := sys.modules.get("torch.distributed.nn.functional"):  # imported by the packing of rollouts
        stubs["torch.distributed.nn.functional.all_gather"] = functional, gather_with_gradient
    for name, (owner, stub) in stubs.items():
        setattr(owner, name.rpartition(".")[2], stub)
    return list(stubs)
