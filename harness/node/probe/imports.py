"""Import proof: which files the code under test really came from."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from typing import Any

from harness.words.records import ImportProof

# Imported once by the agent before any fork; every module of the code under test that ranks use.
WARM_MODULES = (
    "torch.distributed.elastic.multiprocessing",
    "megatron.core.distributed",
    "megatron.core.models.gpt.gpt_layer_specs",
    "megatron.core.models.gpt.gpt_model",
    "megatron.core.optimizer",
    "megatron.core.packed_seq_params",
    "megatron.core.parallel_state",
    "megatron.core.pipeline_parallel",
    "megatron.core.utils",
)
# Imported late by some releases, in every rank: wanted in the parent too, if they are there.
_WARM_IF_PRESENT = ("megatron.core.models.mimo",)
_PROVEN = (
    "torch",
    "megatron.core",
    "megatron.core.models.gpt.gpt_model",
    "megatron.core.packed_seq_params",
    "megatron.core.pipeline_parallel.schedules",
    "megatron.core.utils",
    "transformer_engine",
)


def import_all() -> None:
    """Import the heavy modules; the first failure is the caller's to report."""
    for name in WARM_MODULES:
        importlib.import_module(name)
    for name in _WARM_IF_PRESENT:
        if importlib.util.find_spec(name) is not None:
            importlib.import_module(name)


def import_proof() -> list[ImportProof]:
    """Version and file of every proven module that is loaded in this process."""
    return [
        ImportProof(module=name, version=_version(name), path=str(getattr(module, "__file__", "")))
        for name, module in ((name, sys.modules.get(name)) for name in _PROVEN)
        if module is not None
    ]


def _version(name: str) -> str:
    package: Any = sys.modules[name.split(".")[0]]
    if name.startswith("megatron.core"):
        package = sys.modules["megatron.core"]
    return str(getattr(package, "__version__", "unknown"))
