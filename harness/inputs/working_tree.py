"""The working tree around the current folder, the project that it is of, and what that tree pins."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path

from harness.core.errors import InputError, Problem
from harness.core.stack import Checkout
from harness.infra.files import MIB, is_file, matrix_path, read_text, shipped
from harness.infra.git import repository_names, run
from harness.matrix.stacks.recipes import WorkingTree
from harness.upstreams.megatron_lm.project import MEGATRON_LM
from harness.upstreams.project import Pin
from harness.upstreams.table import PROJECTS, project_of

_SOURCES = re.compile(r"(?ms)^\[tool\.uv\.sources\]\s*$(.*?)(?=^\[|\Z)")


def working_tree() -> WorkingTree:
    """Return the checkout that the current folder is in.

    Where there is none, the current folder as if it were Megatron-LM: a plan shows it as unavailable, a run says why.
    """
    return standing_in() or WorkingTree(str(_current_folder()), MEGATRON_LM.name)


def matrix_here(path: Path, tree_of: Callable[[], WorkingTree | None] | None = None) -> Path:
    """Return the matrix file; for the shipped one called `gate`, the gate of the current checkout's project.

    `tree_of`: finds another checkout. InputError if its project has no gate.
    """
    is_gate = path == shipped("matrices") / f"{MEGATRON_LM.gate}.yaml"
    tree = (tree_of or standing_in)() if is_gate else None
    if tree is None:
        return path
    gate = PROJECTS[tree.project].gate
    if not gate:
        raise InputError(
            Problem(
                message=f"{tree.folder} is a checkout of {tree.project}, which has no gate",
                hint="`harness init` writes a matrix that tests it; a project's `gate` names one (docs/projects.md)",
            )
        )
    return matrix_path(gate)


def standing_in() -> WorkingTree | None:
    """Return the checkout of a known project that the current folder is in, None if there is none."""
    here = _current_folder()
    trees = (tree_at(folder) for folder in (here, *here.parents) if (folder / ".git").exists())
    return next((tree for tree in trees if tree), None)


def tree_at(folder: Path) -> WorkingTree | None:
    """Return the checkout of a known project in a folder, None if it is none."""
    project = project_of(lambda name: (folder / name).exists(), repository_names(str(folder)))
    if project is None:
        return None
    pinned = tuple(one for pin in project.pins if (one := _pinned(folder, pin)))
    return WorkingTree(str(folder), project.name, _version(folder / project.version_file), pinned)


def _version(file: Path) -> str:
    """Return the version that a file of the tree states, e.g. "0.8.0"; empty if there is none."""
    found = re.search(r"\d+(\.\d+)+", read_text(file, MIB)) if is_file(file) else None
    return found[0] if found else ""


def _pinned(folder: Path, pin: Pin) -> Checkout | None:
    """Return what a tree pins, None if it does not: the submodule's folder where it is checked out, else a commit."""
    other = PROJECTS[pin.project]
    if pin.source:
        return next(_sources(folder, pin), None)
    submodule = folder / pin.submodule
    if any((submodule / sign).exists() for sign in other.signs):
        return Checkout(package=other.name, repository=str(submodule), ref="")
    row = run(folder, "ls-tree", "HEAD", pin.submodule).stdout.split()  # mode, type, hash and path
    is_commit = len(row) == 4 and row[1] == "commit"
    return Checkout(package=other.name, repository=other.url, ref=row[2]) if is_commit else None


def _sources(folder: Path, pin: Pin) -> Iterator[Checkout]:
    """Yield the commits that [tool.uv.sources] of pyproject.toml names for a distribution.

    By patterns, since Python 3.10 has no tomllib.
    """
    file = folder / "pyproject.toml"
    section = _SOURCES.search(read_text(file, MIB)) if is_file(file) else None
    value = re.search(rf"(?m)^{re.escape(pin.source)} *= *(\{{[^}}]*\}}|\[[^\]]*\])", section[1]) if section else None
    for entry in re.findall(r"\{[^}]*\}", value[1]) if value else ():
        facts = dict(re.findall(r"(\w+) *= *[\"']([^\"']*)[\"']", entry))
        if facts.get("git") and facts.get("rev"):
            yield Checkout(package=pin.project, repository=facts["git"], ref=facts["rev"])


def _current_folder() -> Path:
    return Path(os.path.abspath("."))  # noqa: PTH100 - keeps symbolic links
