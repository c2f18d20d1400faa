"""Probes GPUs, and the network that NCCL would use, for `harness doctor`."""

from __future__ import annotations

import json
import resource
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from harness.infra.command import Answer
from harness.infra.doctor.gpu_checks import GpuFacts, TorchFacts

PATIENCE_S = 120.0  # to import torch and Transformer Engine from a cold shared file system
_PROGRAM = """
import json, sys, warnings
warnings.simplefilter("ignore")
import torch
from importlib.metadata import PackageNotFoundError, version
count = torch.cuda.device_count() if torch.cuda.is_available() else 0
said = {"cuda": torch.version.cuda, "available": count > 0, "kernels": torch.cuda.get_arch_list(),
        "devices": [torch.cuda.get_device_name(one) for one in range(count)],
        "capabilities": ["sm_%d%d" % torch.cuda.get_device_capability(one) for one in range(count)]}
if torch.version.cuda and torch.distributed.is_nccl_available():
    said["nccl"] = ".".join(map(str, torch.cuda.nccl.version()))
try:
    said["engine"] = version("transformer-engine")
    import transformer_engine.pytorch
except PackageNotFoundError:
    pass
except BaseException as error:
    said["engine_problem"] = "%s: %s" % (type(error).__name__, (str(error).splitlines() or [""])[0])
print("\\n" + json.dumps(said))
"""
Ask = Callable[..., Answer]


def probe_gpus(python: str | None, env: Mapping[str, str], ask: Ask, system: Path = Path("/")) -> GpuFacts:
    """The facts of this machine; `python` None: it is in a container, where torch cannot be probed.

    `system`: the root of the file system, for tests.
    """
    torch = None if python is None else probe_torch(python, env, ask)
    soft, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    shm = system / "dev/shm"
    return GpuFacts(
        driver=ask(["nvidia-smi"]),
        torch=torch,
        interfaces=tuple(sorted(path.name for path in (system / "sys/class/net").glob("*") if path.name != "lo")),
        infiniband=infiniband_ports(system / "sys/class/infiniband"),
        shm_bytes=shutil.disk_usage(shm).total if shm.is_dir() else 0,
        memlock_bytes=None if soft == resource.RLIM_INFINITY else soft,
    )


def probe_torch(python: str, env: Mapping[str, str], ask: Ask) -> TorchFacts | Answer:
    """Imports torch in an interpreter and lists its CUDA devices; returns the Answer if the command fails."""
    answer = ask([python, "-c", _PROGRAM], env, PATIENCE_S)
    if answer.problem:
        return answer
    try:
        output: dict[str, Any] = json.loads(answer.text.splitlines()[-1])
    except (ValueError, IndexError):
        return Answer(problem="unexpected output: not a Python interpreter?")
    facts: dict[str, Any] = {name: tuple(value) if isinstance(value, list) else value for name, value in output.items()}
    return TorchFacts(**facts)


def infiniband_ports(folder: Path) -> dict[str, str]:
    """Device/port -> state and rate, e.g. mlx5_0/1 -> "ACTIVE, 400 Gb/sec (4X NDR)"; includes RoCE."""
    found = {}
    for port in sorted(folder.glob("*/ports/*")):
        state, rate = (_read(port / name) for name in ("state", "rate"))
        found[f"{port.parent.parent.name}/{port.name}"] = f"{state.rpartition(': ')[2]}, {rate}"
    return found


def _read(file: Path) -> str:
    try:
        return file.read_text(encoding="ascii", errors="replace").strip()
    except OSError:
        return "unknown"
