"""The imports of the agent, done once before it forks."""

from __future__ import annotations

import gc
import os
import tempfile
import time
from functools import cache
from importlib.metadata import entry_points
from importlib.util import find_spec
from pathlib import Path

from harness.core.errors import InfrastructureError
from harness.core.run.run_dir import RunDir
from harness.core.upstream import why_unsupported


def load() -> None:
    """Import everything that a rank needs. InfrastructureError if an import initialises CUDA, or Megatron is too old.

    Without a GPU, torch's compiler is disabled first: see docs/decisions/0020-no-compiler-on-the-cpu.md.

    GPUs are hidden during the imports: where flash-attn is installed, Transformer Engine queries their architecture,
    which initialises CUDA, and ranks forked afterwards could not use it.
    """
    from harness.runtime.device.cuda_forks import driver_installed, forks_protected  # imports torch

    if not driver_installed() and os.environ.setdefault("TORCHDYNAMO_DISABLE", "1") == "1":
        # torch creates this folder at import, also when nothing is compiled: name one that exists
        os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", tempfile.gettempdir())
    if installed("megatron.core"):
        # megatron.core.package_info reads this before it runs git.
        os.environ.setdefault("NO_VCS_VERSION", "1")
    core = find_spec("megatron.core")
    if core and core.origin and (why := why_unsupported(Path(core.origin).parent)):
        raise InfrastructureError(why)
    gc.disable()  # saves a tenth of the CPU time of these imports, which create almost no garbage
    with forks_protected("importing the stack under test"):
        from harness.probe.built import import_all

        import_all()

        import harness.runtime.supervisor  # noqa: F401  - imports the probe and the code under test
    entry_points(group="torch.distributed.backends")  # in every rank torch looks for them: fills importlib's caches
    gc.enable()


def installed(module: str) -> bool:
    """Return whether a module is part of an installed package, not of a checkout. Imports the packages above it.

    An installed Megatron would add to its version the commit of whichever repository its environment lies in.
    """
    spec = find_spec(module)
    return spec is not None and bool({"site-packages", "dist-packages"} & set(Path(spec.origin or "").parts))


@cache
def loaded() -> float:
    """Call `load`, once in this process.

    Return the seconds that it took, also when that was earlier (agent_ahead.py).
    """
    begin = time.perf_counter()
    load()
    return time.perf_counter() - begin


def load_plugins(run: RunDir) -> None:
    """Load the plug-ins of the run; after `load`, since their modules may import torch and Megatron."""
    if not run.plugins.exists():
        return
    from harness.runtime.device.cuda_forks import forks_protected
    from harness.runtime.plugins import activate

    with forks_protected("importing plug-ins"):
        activate(run)
