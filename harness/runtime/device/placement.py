"""Applies the device placement that core/hardware.py decides to this process.

Without a GPU, tests cover the CUDA branch with a patched device count; tests/gpu runs it on a real one.
"""

from __future__ import annotations

import os
import platform
import re
import resource
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist

from harness.core.hardware import DevicePlacement, placed_rank

_MIN_LIMIT = 4 * 2**30  # bytes


@dataclass(frozen=True, kw_only=True)
class Device(DevicePlacement):
    """A rank's device, as torch names it."""

    @property
    def torch_device(self) -> torch.device:
        return torch.device("cpu") if self.index is None else torch.device("cuda", self.index)


def gpus() -> int:
    """Return the number of GPUs that torch can use.

    Only for forked ranks: it may call into the driver (cuda_forks.py).
    """
    return torch.cuda.device_count() if torch.cuda.is_available() else 0


def choose_device(local_rank: int, local_world_size: int, requested: str = "auto") -> Device:
    """Return the device of one rank; `requested` as in core/hardware.py. Only in forked ranks: may initialise CUDA.

    On the CPU, GPUs are hidden from upstream. ValueError when a GPU is asked for and there is none.
    """
    placed = placed_rank(requested, gpus(), local_rank, local_world_size)
    if placed.kind == "cpu":
        os.environ |= {"CUDA_VISIBLE_DEVICES": ""} if gpus() else {}
    else:
        torch.cuda.set_device(placed.index)
        torch.set_float32_matmul_precision("highest")  # some images enable TF32, which exceeds the bounds of fp32
    return Device(kind=placed.kind, backend=placed.backend, index=placed.index, sharing=placed.sharing)


def barrier(device: Device) -> None:
    """Call dist.barrier() on this rank's GPU. By default NCCL takes the GPU "global rank modulo GPUs of the node", and
    hangs when two ranks get the same one.
    """
    device_ids = [device.index] if device.backend == "nccl" and device.index is not None else None
    dist.barrier(device_ids=device_ids)


def synchronize(device: Device) -> None:
    """Wait for the kernels that this rank has launched; nothing to do on the CPU."""
    if device.kind == "cuda":
        torch.cuda.synchronize()


def share_cores() -> None:
    """Let no thread of a CPU rank preempt another by waking up (SCHED_BATCH of sched(7)); threads started later inherit
    it. gloo sends under a lock: while its holder is preempted by the receiver, the rank's own event loop spins on it.
    """
    with suppress(OSError):  # refused by some containers: slower, not wrong
        os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))


def limit_memory(local_world_size: int) -> int:
    """Limit a CPU rank's memory to its share of the machine, at least 4 GiB; return the limit in bytes.

    A garbage max_seqlen makes a rotary table of any size, and without a limit the OOM killer might end another process.
    """
    total = _bytes_in("/proc/meminfo", "MemTotal")
    limit = max(total // local_world_size, _MIN_LIMIT)
    inherited = _bytes_in("/proc/self/status", "VmData")  # from the fork; mostly shared with the parent
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    soft = inherited + limit if hard == resource.RLIM_INFINITY else min(inherited + limit, hard)
    resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))
    return limit


def _bytes_in(file: str, name: str) -> int:
    """Return a field of a file in /proc, in bytes. RuntimeError when the file does not have it."""
    field = re.search(rf"^{name}:\s+(\d+) kB", Path(file).read_text(encoding="ascii"), re.MULTILINE)
    if field is None:
        raise RuntimeError(f"{file} has no {name}")
    return int(field.group(1)) * 1024


def processor() -> str:
    """Return the model and number of cores of this machine's CPU, e.g. "AMD EPYC 9654 96-Core Processor x 192"."""
    model_name = re.search(r"^model name\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(encoding="utf-8"), re.MULTILINE)
    return f"{model_name.group(1) if model_name else platform.machine()} x {os.cpu_count()}"


def capability(device: Device) -> tuple[int, int] | None:
    """Return the compute capability of a rank's GPU, e.g. (9, 0); None on the CPU."""
    return torch.cuda.get_device_capability(device.torch_device) if device.kind == "cuda" else None


def memory_bytes(device: Device) -> int:
    """Return the total memory of a rank's GPU."""
    return int(torch.cuda.get_device_properties(device.torch_device).total_memory)


def peak_memory_bytes(device: Device) -> int:
    """Return the peak of allocated GPU memory; on the CPU, of this process's resident memory."""
    if device.kind == "cuda":
        return torch.cuda.max_memory_allocated(device.torch_device)
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def peak_reserved_bytes(device: Device) -> int | None:
    """Return the peak of GPU memory reserved by torch's caching allocator; None on the CPU."""
    return torch.cuda.max_memory_reserved(device.torch_device) if device.kind == "cuda" else None
