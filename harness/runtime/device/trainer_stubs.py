"""CPU stubs for upstream's trainers, besides those of cpu_stubs.py: CUDA's devices, streams and memory figures.

As there, the stubs do not change what upstream computes.
"""

from __future__ import annotations

import os
import sys
from typing import Any

import torch

from harness.runtime.device import cpu_stubs

_FIGURES = (
    "max_memory_allocated",
    "max_memory_reserved",
    "mem_get_info",
    "memory_allocated",
    "memory_reserved",
)
_EFFECTS = ("empty_cache", "ipc_collect", "reset_peak_memory_stats", "set_stream")


def install() -> list[str]:
    """Replace the calls in this process; return their dotted names. After cpu_stubs.install."""
    import megatron.core.datasets.utils as dataset_utils

    cuda: Any = torch.cuda
    rows: list[tuple[Any, str, Any]] = [
        # Only for trainers: they refuse to start without CUDA, whereas megatron-core takes the CPU where this is False.
        (cuda, "is_available", lambda: True),
        (cuda, "device_count", lambda: int(os.environ["LOCAL_WORLD_SIZE"])),
        (cuda, "memory_stats", lambda *args, **kwargs: {}),
        (cuda, "is_current_stream_capturing", lambda *args, **kwargs: False),
        *((cuda, name, _zero()) for name in _FIGURES),
        *((cuda, name, cpu_stubs.nothing()) for name in _EFFECTS),
        (torch.distributed, "barrier", _barrier),
        (torch.Tensor, "pin_memory", lambda self, *args, **kwargs: self),
        # It asks CUDA whether a graph is being captured, now that `is_available` says yes.
        (torch.optim.Optimizer, "_accelerator_graph_capture_health_check", cpu_stubs.nothing()),
    ]
    for module in (dataset_utils, sys.modules.get("megatron.bridge.training.initialize")):
        if module is not None:  # for data sets that these cells do not have
            rows.append((module, "compile_helpers", cpu_stubs.nothing()))
    return cpu_stubs.replace(rows)


# gloo refuses `device_ids`, which upstream passes for NCCL.
_barrier_of_torch = torch.distributed.barrier


def _barrier(*args: Any, device_ids: Any = None, **kwargs: Any) -> Any:
    return _barrier_of_torch(*args, **kwargs)


def _zero() -> Any:
    return lambda *args, **kwargs: 0
