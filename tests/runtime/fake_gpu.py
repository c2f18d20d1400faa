"""Fake GPU tensors: an operation that mixes them with CPU tensors raises, as with CUDA.

They compute on the CPU. Reading them on the host (cpu, item, tolist, float) returns plain tensors and numbers.
"""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch.utils._pytree import tree_leaves

_TO_HOST = {"cpu", "item", "tolist", "__float__", "__int__", "__bool__", "numpy"}


class OnGpu(torch.Tensor):
    is_cuda = True
    read: ClassVar[list[str]] = []  # operations that synchronised with the host

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        leaves = tree_leaves((args, kwargs or {}))
        on_cpu = [leaf for leaf in leaves if type(leaf) is torch.Tensor and leaf.dim() > 0]
        if on_cpu:
            raise RuntimeError(
                f"{func.__name__}: expected all tensors to be on the same device, but found at least two devices, "
                "cuda:0 and cpu"
            )
        if func.__name__ in _TO_HOST:
            cls.read.append(func.__name__)
        out = super().__torch_function__(func, types, args, kwargs or {})
        if func.__name__ in _TO_HOST:
            return out.as_subclass(torch.Tensor) if isinstance(out, torch.Tensor) else out
        return out


def on_gpu(tensor: torch.Tensor) -> OnGpu:
    return tensor.as_subclass(OnGpu)
