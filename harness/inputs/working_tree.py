"""The working tree that a command stands in, and the project it is of."""

from __future__ import annotations

import os
from pathlib import Path

from harness.infra.git import run
from harness.matrix.stacks.bisection_cells import project_of
from harness.matrix.stacks.recipes import PROJECTS, WorkingTree

_MEGATRON_LM = "megatron-lm"
_SUBMODULE = "3rdparty/Megatron-LM"  # of Megatron-Bridge, whose main needs a newer Megatron than releases have


def working_tree() -> WorkingTree:
    """Return the checkout that the current folder is in.

    Where there is none, the current folder as if it were Megatron-LM: a plan shows it as unavailable, a run says why.
    """
    return standing_in() or WorkingTree(str(_current_folder()), _MEGATRON_LM)


def standing_in() -> WorkingTree | None:
    """Return the checkout of a known project that the current folder is in, None if there is none."""
    here = _current_folder()
    for folder in (here, *here.parents):
        if (folder / ".git").exists():
            project = project_of(lambda name, folder=folder: (folder / name).exists())  # type: ignore[misc]
            if project:
                return WorkingTree(
                    str(folder), project, _submodule_megatron(folder) if project == "megatron-bridge" else ""
                )
    return None


def _submodule_megatron(folder: Path) -> str:
    """Return the folder of the submodule Megatron-LM; its commit where it is not checked out; empty where there is
    none.
    """
    if (folder / _SUBMODULE / PROJECTS[_MEGATRON_LM].signs[0]).exists():
        return str(folder / _SUBMODULE)
    row = run(folder, "ls-tree", "HEAD", _SUBMODULE).stdout.split()  # mode, type, hash and path
    return row[2] if len(row) == 4 and row[1] == "commit" else ""


def _current_folder() -> Path:
    return Path(os.path.abspath("."))  # noqa: PTH100 - keeps symbolic links
