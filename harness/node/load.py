"""What the agent imports, once, before it forks."""

from __future__ import annotations

import os

from harness.words.errors import InfrastructureError


def load() -> None:
    """Import everything a rank needs, so that forked ranks start at once. InfrastructureError if that started CUDA.

    GPUs are hidden while modules load: Transformer Engine asks for their architecture where flash-attn is installed,
    and ranks forked from a process that has started CUDA cannot use it.
    """
    shown = os.environ.get("CUDA_VISIBLE_DEVICES")
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    try:
        from harness.node.probe.imports import import_all

        import_all()
        import torch

        import harness.node.supervisor  # noqa: F401  - loads the probe with the code under test
    finally:
        del os.environ["CUDA_VISIBLE_DEVICES"]
        os.environ |= {} if shown is None else {"CUDA_VISIBLE_DEVICES": shown}
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        raise InfrastructureError("importing the stack under test started CUDA: forked ranks could not use it")
