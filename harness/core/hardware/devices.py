"""The device and back end of each rank, from the axis `device` and the GPUs of the node. Pure.

| `device` | GPUs of the node | ranks compute | collectives |
|---|---|---|---|
| cpu | any | on the CPU | gloo |
| auto | none | on the CPU | gloo |
| auto, cuda | at least one per rank of the node | each on its own GPU | NCCL |
| auto, cuda | fewer | several on one GPU | gloo with CUDA tensors (node/device/gloo_stubs.py) |
| cuda | none | nowhere: ERROR | |
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from harness.core.cell.config import CellConfig
from harness.core.outcomes import Missing


@dataclass(frozen=True, kw_only=True)
class DevicePlacement:
    """The device and back end of one rank."""

    kind: Literal["cuda", "cpu"]
    backend: Literal["nccl", "gloo"]
    index: int | None = None  # of the GPU on its node
    sharing: int = 1  # ranks on that GPU, this one included

    def __str__(self) -> str:
        """E.g. "cuda with nccl", "cuda with gloo, 2 ranks on one GPU", "cpu with gloo"."""
        shared = f", {self.sharing} ranks on one GPU" if self.sharing > 1 else ""
        return f"{self.kind} with {self.backend}{shared}"


def place(requested: str, gpus: int, local_rank: int, local_world_size: int) -> DevicePlacement:
    """The device of one of `local_world_size` ranks on a node with `gpus` GPUs. ValueError if there is none."""
    if requested == "cpu" or (requested == "auto" and gpus == 0):
        return DevicePlacement(kind="cpu", backend="gloo")
    if gpus == 0:
        raise ValueError("device is cuda, and this machine has no GPU that torch can use")
    if gpus >= local_world_size:
        return DevicePlacement(kind="cuda", backend="nccl", index=local_rank)
    index = local_rank % gpus
    return DevicePlacement(kind="cuda", backend="gloo", index=index, sharing=len(range(index, local_world_size, gpus)))


def shown_gpus(part: Sequence[int], shown: str | None) -> str:
    """CUDA_VISIBLE_DEVICES for processes that may use only some of a node's GPUs.

    `part`: indices among the GPUs visible now; `shown`: CUDA_VISIBLE_DEVICES now, None if it is not set. Its names may
    be indices, GPU-<uuid> or MIG-<uuid>. IndexError if `part` exceeds them.
    """
    names = shown.split(",") if shown is not None else None
    return ",".join(str(index) if names is None else names[index].strip() for index in part)


def unplaced(config: CellConfig, gpus: int, local_world_size: int) -> Missing | None:
    """Why a cell's ranks cannot run on the device that the cell requests; None if they can."""
    try:
        place(config.device, gpus, 0, local_world_size)
    except ValueError as error:
        return Missing(reason=f"{error}; `device: cpu` runs the cell on the CPU")
    return None
