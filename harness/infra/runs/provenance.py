"""The machine and the versions of a run. Versions come from package metadata: torch is not imported here."""

from __future__ import annotations

import os
import platform
import sys
from datetime import datetime, timezone
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import harness
from harness.core.errors import InfrastructureError
from harness.infra import git
from harness.infra.inputs.files import checkout

_PACKAGES = ("megatron-core", "torch", "transformer-engine", "numpy", "submitit")


def collect() -> dict[str, object]:
    """Facts for the report; an allow list, so that no secret of the environment leaks into it."""
    return {
        "harness": harness.__version__,
        "harness_commit": _commit(Path(harness.__file__).parent) if checkout() else "unknown",
        "started": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "host": platform.node(),
        "system": platform.platform(),
        "cores": len(os.sched_getaffinity(0)),
        "python": platform.python_version(),
        "interpreter": sys.executable,
        "packages": {name: _version(name) for name in _PACKAGES},
    }


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"


def _commit(folder: Path) -> str:
    """Commit of the harness's checkout, with "+changes" when files differ; "unknown" outside a checkout."""
    try:
        head = git.run(folder, "rev-parse", "--short=12", "HEAD", timeout_s=10)
        dirty = git.run(folder, "status", "--porcelain", ".", timeout_s=10)
    except InfrastructureError:  # no git on this machine, or the file system is too slow
        return "unknown"
    if head.returncode:
        return "unknown"
    return head.stdout.strip() + ("+changes" if dirty.stdout.strip() else "")
