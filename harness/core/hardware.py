"""The hardware of a node as the harness uses it: devices, shares of GPUs, variables, peak rates, addresses. Pure.

The axis `device` and the GPUs of the node decide the device and back end of each rank:

| `device` | GPUs of the node | ranks compute | collectives |
|---|---|---|---|
| cpu | any | on the CPU | gloo |
| auto | none | on the CPU | gloo |
| auto, cuda | at least one per rank of the node | each on its own GPU | NCCL |
| auto, cuda | fewer | several on one GPU | gloo with CUDA tensors (runtime/device/gloo_stubs.py) |
| cuda | none | nowhere: ERROR | |

Cells that run on a node at the same time never share a GPU. Peak rates are from the vendors' data sheets; the share of
them in use is MFU. They are dense rates: data sheets state tensor core rates with sparsity, twice as high, and halve
them in a footnote. fp32 rates are those without tensor cores, since torch by default multiplies fp32 without TF32.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable, Mapping, Sequence
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
        """Return e.g. "cuda with nccl", "cuda with gloo, 2 ranks on one GPU", "cpu with gloo"."""
        shared = f", {self.sharing} ranks on one GPU" if self.sharing > 1 else ""
        return f"{self.kind} with {self.backend}{shared}"


def placed_rank(requested: str, gpus: int, local_rank: int, local_world_size: int) -> DevicePlacement:
    """Return the device of one of `local_world_size` ranks on a node with `gpus` GPUs. ValueError if there is none."""
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
    """Return why a cell's ranks cannot run on the device that the cell requests; None if they can."""
    try:
        placed_rank(config.device, gpus, 0, local_world_size)
    except ValueError as error:
        return Missing(reason=f"{error}; `device: cpu` runs the cell on the CPU")
    return None


def gpus_needed(device: str, ranks: int, total: int) -> int:
    """Return the number of GPUs that a cell with `ranks` ranks on the node takes.

    One per rank. A cell with more ranks than the node has GPUs shares all of them among its own ranks.
    `total`: GPUs of the node.
    """
    return 0 if device == "cpu" else min(ranks, total)


def assigned_gpus(free: Sequence[int], needed: int) -> tuple[int, ...] | None:
    """Return the GPUs of a cell among the free ones; None while too few are free.

    Consecutive ones if possible, since they are the best connected on most nodes.
    """
    order = sorted(free)
    if len(order) < needed:
        return None
    for start in range(len(order) - needed + 1):
        row = order[start : start + needed]
        if not row or row[-1] - row[0] == needed - 1:
            return tuple(row)
    return tuple(order[:needed])


class GpuSlices:
    """The GPUs of one node and the cells that hold them."""

    def __init__(self, total: int) -> None:
        self.total = total
        self.held: dict[str, tuple[int, ...]] = {}

    def fits(self, device: str, ranks: int) -> bool:
        """Return whether a cell can start now."""
        return assigned_gpus(self._free(), gpus_needed(device, ranks, self.total)) is not None

    def take(self, cell: str, device: str, ranks: int) -> tuple[int, ...] | None:
        """Return the GPUs that the cell's ranks may use, held until `release`; None for a node without GPUs.

        ValueError if too few are free: call `fits` first.
        """
        found = assigned_gpus(self._free(), gpus_needed(device, ranks, self.total))
        if found is None:
            raise ValueError(f"too few free GPUs for {cell}: {self._free()} of {self.total}")
        self.held[cell] = found
        return found if self.total else None

    def release(self, cell: str) -> None:
        """Free the GPUs of a cell that has ended."""
        self.held.pop(cell, None)

    def _free(self) -> list[int]:
        taken = {index for part in self.held.values() for index in part}
        return [index for index in range(self.total) if index not in taken]


# Defaults of every agent; a value set by the job or the user takes precedence.
AGENT_VARIABLES: Mapping[str, str] = {
    "OMP_NUM_THREADS": "1",
    "CUDA_DEVICE_MAX_CONNECTIONS": "1",
    # Megatron makes tens of groups, and gloo would connect every two members of each, most of which never communicate.
    "TORCH_GLOO_LAZY_INIT": "1",
    # torch's flight recorder: the collectives that a rank has enqueued, dumped when it hangs. Old and new name.
    "TORCH_NCCL_TRACE_BUFFER_SIZE": "1000",
    "TORCH_FR_BUFFER_SIZE": "1000",
    # Otherwise NCCL's watchdog thread aborts the process after a CUDA error, before the main thread has recorded it.
    "TORCH_NCCL_RETHROW_CUDA_ERRORS": "0",
}
# Defaults of ranks on GPUs whose cell is not timed: runs must repeat bit by bit where the hardware can. They rule out
# some kernels and algorithms (cuDNN on Hopper, NVLS), so a timed cell does without them, like a real training run.
DETERMINISM_VARIABLES: Mapping[str, str] = {
    "NCCL_ALGO": "Ring",
    "CUBLAS_WORKSPACE_CONFIG": ":4096:8",
    "NVTE_ALLOW_NONDETERMINISTIC_ALGO": "0",
}
WITHOUT_VARIABLE = "PACKING_HARNESS_WITHOUT"  # comma-separated names in DETERMINISM that a cluster profile excludes
RECORDED_PREFIXES = ("NCCL_", "NVTE_", "CUBLAS_", "CUDNN_", "TORCH_NCCL_", "CUDA_DEVICE_", "GLOO_SOCKET_")


def determinism_variables(environment: Mapping[str, str], *, timed: bool) -> dict[str, str]:
    """Variables that a rank on a GPU adds to its environment before CUDA starts."""
    without = environment.get(WITHOUT_VARIABLE, "").split(",")
    return {
        name: value
        for name, value in DETERMINISM_VARIABLES.items()
        if not timed and name not in without and name not in environment
    }


def is_deterministic_te(environment: Mapping[str, str], *, timed: bool) -> bool:
    """Return whether Transformer Engine may use only deterministic kernels in a rank with this environment."""
    merged = {**environment, **determinism_variables(environment, timed=timed)}
    return merged.get("NVTE_ALLOW_NONDETERMINISTIC_ALGO", "1") == "0"


def recorded_variables(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables to put into a rank's record: they select kernels, algorithms and networks."""
    return {name: value for name, value in sorted(environment.items()) if name.startswith(RECORDED_PREFIXES)}


PEAK_DTYPES = ("bf16", "fp32")


@dataclass(frozen=True, kw_only=True)
class Peak:
    """Peak rates of a device; `pattern` matches the start of torch.cuda.get_device_name() without "NVIDIA "."""

    pattern: str
    tflops: Mapping[str, float]  # dtype -> 1e12 operations per second
    origin: str


# The first matching row counts, so narrower patterns come first.
PEAKS: tuple[Peak, ...] = (
    Peak(pattern=r"GB200\b", tflops={"bf16": 2500, "fp32": 80}, origin="GB200 NVL72 data sheet, one GPU"),
    Peak(pattern=r"B200\b", tflops={"bf16": 2250, "fp32": 75}, origin="HGX B200 data sheet, one GPU"),
    Peak(pattern=r"GH200\b", tflops={"bf16": 990, "fp32": 67}, origin="GH200 data sheet"),
    Peak(pattern=r"H200 NVL\b", tflops={"bf16": 835.5, "fp32": 60}, origin="H200 data sheet, NVL"),
    Peak(pattern=r"H200\b", tflops={"bf16": 989.5, "fp32": 67}, origin="H200 data sheet, SXM"),
    Peak(pattern=r"H100 NVL\b", tflops={"bf16": 835.5, "fp32": 60}, origin="H100 data sheet, NVL"),
    Peak(pattern=r"H100 PCIe\b", tflops={"bf16": 756.5, "fp32": 51}, origin="H100 data sheet, PCIe"),
    Peak(pattern=r"H100\b.*HBM3", tflops={"bf16": 989.5, "fp32": 67}, origin="H100 data sheet, SXM"),
    Peak(pattern=r"A100\b", tflops={"bf16": 312, "fp32": 19.5}, origin="A100 data sheet, PCIe and SXM alike"),
    Peak(pattern=r"A30\b", tflops={"bf16": 165, "fp32": 10.3}, origin="A30 data sheet"),
    Peak(pattern=r"A10\b", tflops={"bf16": 125, "fp32": 31.2}, origin="A10 data sheet"),
    Peak(pattern=r"L40S\b", tflops={"bf16": 362, "fp32": 91.6}, origin="L40S data sheet"),
    Peak(pattern=r"L40\b", tflops={"bf16": 181, "fp32": 90.5}, origin="L40 data sheet"),
    Peak(pattern=r"L4\b", tflops={"bf16": 121, "fp32": 30.3}, origin="L4 data sheet"),
)


@dataclass(frozen=True, kw_only=True)
class PeakFound:
    """The peak of a device; `tflops` is None if none is known, and `origin` says why."""

    tflops: float | None
    origin: str


def peak_of(device: str, dtype: str, stated: Mapping[str, float] | None = None) -> PeakFound:
    """Return the peak for a dtype of a device, as torch names it. A value stated by the user overrides the table."""
    if stated and dtype in stated:
        return PeakFound(tflops=stated[dtype], origin="stated by the matrix or the cluster profile")
    if device in ("", "cpu"):
        return PeakFound(tflops=None, origin="ranks on a CPU have no peak in the table")
    name = device.removeprefix("NVIDIA ")
    row = next((row for row in PEAKS if re.match(row.pattern, name)), None)
    if row is None or " MIG " in name:  # a MIG slice reaches only a share of the GPU's peak
        where = "peak_tflops of checks.throughput or of the cluster profile"
        return PeakFound(tflops=None, origin=f"the peak of {device!r} is not in the table; state it as {where}")
    if dtype not in row.tflops:
        return PeakFound(tflops=None, origin=f"the table has no {dtype} peak of {device!r}")
    return PeakFound(tflops=row.tflops[dtype], origin=row.origin)


def mfu(tflops_per_s: float | None, peak: PeakFound) -> float | None:
    """Model FLOPs utilisation: FLOP/s that the model needs for its real tokens, over the device's peak."""
    return tflops_per_s / peak.tflops if tflops_per_s is not None and peak.tflops else None


# Bridges and tunnels of containers and virtual machines: the same addresses exist on every node.
_VIRTUAL_INTERFACES = (
    *("lo", "docker", "virbr", "veth", "br-", "cni", "cali", "flannel", "podman", "lxc", "kube", "tunl"),
)


def interface_matches(interface: str, wanted: str) -> bool:
    """Return whether NCCL uses an interface if NCCL_SOCKET_IFNAME is `wanted`.

    Comma-separated prefixes; after `=`: whole names; after `^`: all interfaces but these; after `^=`: both.
    """
    unwanted, exact = wanted.startswith("^"), wanted.lstrip("^").startswith("=")
    names = [name for name in wanted.lstrip("^=").split(",") if name]
    found = interface in names if exact else interface.startswith(tuple(names))
    return found is not unwanted


def node_addresses(interfaces: Mapping[str, Sequence[str]], named: Iterable[str], wanted: str = "") -> list[str]:
    """Addresses under which other nodes may reach this one, the most likely first; loopback only if there is no other.

    `interfaces`: addresses by interface; `named`: what the host's name resolves to, often 127.0.1.1 on Debian;
    `wanted`: NCCL_SOCKET_IFNAME or GLOO_SOCKET_IFNAME; if interfaces match it, only their addresses are returned.
    """
    chosen = [name for name in interfaces if wanted and interface_matches(name, wanted) and not name.startswith("lo")]
    chosen = chosen or [name for name in interfaces if not name.startswith(_VIRTUAL_INTERFACES)]
    own = [address for name in chosen for address in interfaces[name] if not is_loopback(address)]
    resolved = [address for address in named if not is_loopback(address)]
    ordered = [*(one for one in own if one in resolved), *own, *([] if wanted and own else resolved)]
    by_version = sorted(dict.fromkeys(ordered), key=lambda one: ipaddress.ip_address(one).version)  # stable
    return by_version or ["127.0.0.1"]


def is_loopback(address: str) -> bool:
    return ipaddress.ip_address(address).is_loopback


def interface_of(address: str, interfaces: Mapping[str, Sequence[str]]) -> str | None:
    """Return the interface that has an address; None if there is none."""
    return next((name for name, addresses in interfaces.items() if address in addresses), None)
