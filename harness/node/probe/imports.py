"""Import proof: which files the code under test really came from."""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys

from harness.words.records import ImportProof
from harness.words.stack import HEADS

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
_TOPS = ("megatron", "skyrl", "skyrl_train", "transformer_engine", "pretrain_gpt", "gpt_builders", "model_provider")


def import_all() -> None:
    """Import the heavy modules; the first failure is the caller's to report."""
    for name in WARM_MODULES:
        importlib.import_module(name)
    for name in _WARM_IF_PRESENT:
        if importlib.util.find_spec(name) is not None:
            importlib.import_module(name)


def import_proof(*, every_module: bool = False) -> list[ImportProof]:
    """Version and file of the modules under test that are loaded in this process.

    Those that stand for the rest, and every one that lies elsewhere than these; with `every_module`, all. A record is
    written often: the full list, a few hundred, belongs into the last one.
    """
    files = {name: _file(name) for name in sorted(sys.modules) if name.split(".")[0] in _TOPS or name == "torch"}
    named = {name: file for name, file in files.items() if file}
    return [
        ImportProof(module=name, version=_version(name), path=file)
        for name, file in named.items()
        if every_module or name in HEADS or not _beside_head(name, named)
    ]


def _file(name: str) -> str:
    """Where a loaded module lies; empty for a namespace package, which is no code."""
    found = getattr(sys.modules[name], "__file__", None)
    return os.path.abspath(found) if isinstance(found, str) else ""  # noqa: PTH100 - keeps links


def _head(name: str) -> str | None:
    return next((head for head in HEADS if name == head or name.startswith(head + ".")), None)


def _beside_head(name: str, files: dict[str, str]) -> bool:
    """Whether a module lies below the folder of the module that stands for it."""
    head = files.get(_head(name) or "")
    return head is not None and files[name].startswith(os.path.dirname(head) + os.sep)  # noqa: PTH120 - text


def _version(name: str) -> str:
    head = sys.modules.get(_head(name) or name.split(".")[0])
    return str(getattr(head, "__version__", "unknown"))
