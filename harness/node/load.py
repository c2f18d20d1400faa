"""What the agent imports, once, before it forks."""

from __future__ import annotations

import gc
import os


def load() -> None:
    """Import everything a rank needs, so that forked ranks start at once. InfrastructureError if that started CUDA.

    Without a GPU torch's compiler is switched off first: see docs/decisions/0020-no-compiler-on-the-cpu.md.

    GPUs are hidden while modules load: Transformer Engine asks for their architecture where flash-attn is installed,
    and ranks forked from a process that has started CUDA cannot use it.
    """
    from harness.node.device.cuda_forks import driver_there, forks_kept  # imports torch

    if not driver_there():
        os.environ.setdefault("TORCHDYNAMO_DISABLE", "1")
    gc.disable()  # a tenth of the processor time of these imports, which leave next to no garbage
    with forks_kept("importing the stack under test"):
        from harness.node.probe.imports import import_all

        import_all()

        import harness.node.supervisor  # noqa: F401  - loads the probe with the code under test
    gc.enable()
