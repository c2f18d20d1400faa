"""Imports the modules under test that ranks use, and records from which files they came."""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from functools import cache

from harness.core.run.records import ImportProof
from harness.core.upstream import CODE_PACKAGES, HEADS

# All modules of the code under test that ranks use, imported once by the agent before it forks.
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
# Imported lazily by some releases in every rank; imported in the agent if present.
_WARM_IF_PRESENT = ("megatron.core.models.mimo",)


def import_all() -> None:
    """Import the modules under test. Raises the first import error."""
    for name in WARM_MODULES:
        importlib.import_module(name)
    for name in _WARM_IF_PRESENT:
        if importlib.util.find_spec(name) is not None:
            importlib.import_module(name)
    other_modules()  # fills the caches for all ranks


def import_proof() -> list[ImportProof]:
    """Version and file of modules under test that are loaded in this process.

    Only of the heads (core/upstream.HEADS), and of modules whose file is not where their head and name imply.
    """
    named = _files()
    return [
        ImportProof(module=name, version=_version(name), path=file)
        for name, file in named.items()
        if name in HEADS or not _below_head(name, named)
    ]


def other_modules() -> dict[str, str]:
    """The other modules, a few hundred, in the short form that `proofs_of` of judge/import_check.py expands.

    For a rank's final record.
    """
    named = _files()
    found: dict[str, list[str]] = {}
    for name in named:
        below = "" if name in HEADS else _below_head(name, named)
        if below:
            found.setdefault(str(_head(name)), []).append(below)
    return {head: " ".join(names) for head, names in found.items()}


def _files() -> dict[str, str]:
    """Name -> file of the loaded modules under test."""
    files = {
        name: _file(name) for name in sorted(sys.modules) if name.split(".")[0] in CODE_PACKAGES or name == "torch"
    }
    return {name: file for name, file in files.items() if file}


def _file(name: str) -> str:
    """File of a loaded module; empty for a namespace package, which has no code."""
    found = getattr(sys.modules[name], "__file__", None)
    return _absolute(found) if isinstance(found, str) else ""


@cache
def _absolute(path: str) -> str:
    return os.path.abspath(path)  # noqa: PTH100 - keeps links


@cache
def _head(name: str) -> str | None:
    return next((head for head in HEADS if name == head or name.startswith(head + ".")), None)


def _below_head(name: str, files: dict[str, str]) -> str:
    """A module's name relative to its head, with a trailing "/" for packages; empty when its file is elsewhere."""
    head = _head(name)
    if head is None or head not in files:
        return ""
    return _below(files[head], name[len(head) + 1 :], files[name])


@cache
def _below(head_file: str, below: str, file: str) -> str:
    stem = os.path.join(os.path.dirname(head_file), *below.split("."))  # noqa: PTH118, PTH120 - text
    expected = {stem + ".py": below, os.path.join(stem, "__init__.py"): below + "/"}  # noqa: PTH118 - text
    return expected.get(file, "")


def _version(name: str) -> str:
    head = sys.modules.get(_head(name) or name.split(".")[0])
    return str(getattr(head, "__version__", "unknown"))
