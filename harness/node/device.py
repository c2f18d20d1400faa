"""Where the ranks of a cell compute: CUDA with NCCL when every rank has a GPU, else the CPU with gloo."""

from __future__ import annotations

import os
import platform
import re
import resource
from dataclasses import dataclass
from pathlib import Path

import torch

_LEAST_LIMIT = 4 * 2**30  # bytes


@dataclass(frozen=True, kw_only=True)
class Device:
    kind: str  # cuda | cpu
    backend: str  # nccl | gloo
    index: int | None = None

    @property
    def torch_device(self) -> torch.device:
        return torch.device("cpu") if self.index is None else torch.device("cuda", self.index)


def choose_device(local_rank: int, local_world_size: int) -> Device:
    """The device of one rank. Must be called after the fork: it may start CUDA."""
    if torch.cuda.is_available() and torch.cuda.device_count() >= local_world_size:
        torch.cuda.set_device(local_rank)
        return Device(kind="cuda", backend="nccl", index=local_rank)
    return Device(kind="cpu", backend="gloo")


def synchronize(device: Device) -> None:
    if device.kind == "cuda":
        torch.cuda.synchronize()


def limit_memory(local_world_size: int) -> int:
    """Let no rank on the CPU allocate more than its share of the machine, at least 4 GiB; returns the limit in bytes.

    A garbage max_seqlen makes a rotary table of any size: without a limit the kernel kills whom it likes.
    """
    total = _kibibytes("/proc/meminfo", "MemTotal")
    limit = max(total // local_world_size, _LEAST_LIMIT)
    inherited = _kibibytes("/proc/self/status", "VmData")  # of the parent, mostly shared with it
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    soft = inherited + limit if hard == resource.RLIM_INFINITY else min(inherited + limit, hard)
    resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))
    return limit


def _kibibytes(file: str, name: str) -> int:
    """A field of a file of /proc, in bytes."""
    found = re.search(rf"^{name}:\s+(\d+) kB", Path(file).read_text(encoding="ascii"), re.MULTILINE)
    if found is None:
        raise RuntimeError(f"{file} has no {name}")
    return int(found.group(1)) * 1024


def processor() -> str:
    """Model and number of cores of this machine's CPU, e.g. "AMD EPYC 9654 96-Core Processor x 192"."""
    found = re.search(r"^model name\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(encoding="utf-8"), re.MULTILINE)
    return f"{found.group(1) if found else platform.machine()} x {os.cpu_count()}"


def peak_memory_bytes(device: Device) -> int:
    """Peak of allocated GPU memory, or of this process's resident memory on the CPU."""
    if device.kind == "cuda":
        return torch.cuda.max_memory_allocated()
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
