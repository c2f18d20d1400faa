"""Where the ranks of a cell compute: CUDA with NCCL when every rank has a GPU, else the CPU with gloo."""

from __future__ import annotations

from dataclasses import dataclass

import torch


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


def peak_memory_bytes(device: Device) -> int:
    """Peak of allocated GPU memory, or of this process's resident memory on the CPU."""
    if device.kind == "cuda":
        return torch.cuda.max_memory_allocated()
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
