"""The device and back end of each rank, from the axis `device` and the GPUs of the node. Pure.

| `device` | GPUs of the node | ranks compute | collectives |
|---|---|---|---|
| cpu | any | on the CPU | gloo |
| auto | none | on the CPU | gloo |
| auto, cuda | at least one per rank of the node | each on its own GPU | NCCL |
| auto, cuda | fewer | several on one GPU | gloo with CUDA tensors, if it has the collectives |
| cuda | none | nowhere: ERROR | |
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from harness.core.cell.attention import TE_KINDS
from harness.core.cell.config import CellConfig
from harness.core.outcomes import Missing, Rejection
from harness.core.text.counts import counted

# torch 2.15's ProcessGroupGloo supports CUDA tensors in broadcast, all_reduce, all_gather, all_to_all, reduce, gather
# and scatter; reduce_scatter is built on all_reduce. send and recv pass gloo the tensor's address, which it reads as
# host memory.
_NO_P2P = "gloo has no send and recv of CUDA tensors"


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


def unplaced(config: CellConfig, gpus: int, local_world_size: int) -> Rejection | Missing | None:
    """Why a cell's ranks cannot run on the device that the cell requests; None if they can."""
    try:
        found = place(config.device, gpus, 0, local_world_size)
    except ValueError as error:
        return Missing(reason=f"{error}; `device: cpu` runs the cell on the CPU")
    if found.kind == "cpu" or found.backend == "nccl":
        return None
    reason = f"pp {config.layout.pp} sends activations from stage to stage" if config.layout.pp > 1 else None
    reason = reason or ring_needs_p2p(config, found)
    if reason is None:
        return None
    sharing = f"{local_world_size} ranks on {counted(gpus, 'GPU')}, so not NCCL but gloo"
    hint = "device: cpu runs the cell on the CPU"
    source = "torch ProcessGroupGloo: send and recv use host memory"
    return Rejection(rule="device.shared-gpu", reason=f"{sharing}; {reason}, and {_NO_P2P}; {hint}", source=source)


def ring_needs_p2p(config: CellConfig, where: DevicePlacement) -> str | None:
    """Why gloo cannot run Transformer Engine's context parallelism; None if it is not used or runs over NCCL."""
    cp = config.layout.cp
    if cp == 1 or config.attention not in TE_KINDS or where.backend == "nccl":
        return None
    return f"cp {cp} with attention {config.attention} sends keys and values around a ring"
