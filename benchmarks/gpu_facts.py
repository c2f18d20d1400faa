"""The machine of the GPU check, as JSON: device, driver and versions.

python benchmarks/gpu_facts.py FILE
"""

from __future__ import annotations

import json
import platform
import shutil
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

PACKAGES = {"megatron_core": "megatron-core", "transformer_engine": "transformer-engine", "triton": "triton"}
QUERY = "name,driver_version,memory.total,power.limit,clocks.max.sm,compute_cap"


def facts() -> dict[str, Any]:
    """The facts by name; imports torch, computes nothing."""
    import torch

    cuda = torch.cuda.is_available()
    found: dict[str, Any] = {
        "cuda": cuda,
        "devices": [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())] if cuda else [],
        "nvidia_smi": nvidia_smi(),
        "python": f"{platform.python_version()} ({sys.executable})",
        "torch": torch.__version__,
        "torch_cuda": torch.version.cuda,
        "nccl": ".".join(map(str, torch.cuda.nccl.version())) if cuda else None,  # type: ignore[no-untyped-call]
    }
    return found | {name: installed(package) for name, package in PACKAGES.items()} | {"te_import": te_import()}


def installed(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def nvidia_smi() -> list[dict[str, str]]:
    """A row per GPU; empty where nvidia-smi is missing or fails."""
    if shutil.which("nvidia-smi") is None:
        return []
    argv = ["nvidia-smi", f"--query-gpu={QUERY}", "--format=csv,noheader"]
    try:
        done = subprocess.run(argv, capture_output=True, text=True, timeout=20)
    except subprocess.TimeoutExpired:
        return []
    rows = [line.split(", ") for line in done.stdout.splitlines()] if done.returncode == 0 else []
    return [dict(zip(QUERY.split(","), row)) for row in rows]


def te_import() -> str:
    """Why Transformer Engine cannot be imported, with its extension, or "ok"."""
    try:
        import transformer_engine.pytorch  # noqa: F401
    except Exception as error:  # a broken extension may raise anything
        return f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
    return "ok"


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(json.dumps(facts(), indent=1) + "\n")
