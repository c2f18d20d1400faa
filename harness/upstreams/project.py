"""Projects: what stacks must know to run a checkout of one, declared once.

A project's project.py holds its declaration; table.py lists them all, and plug-ins add to that table. Facts only: the
launcher and ranks load them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from harness.core.packing.documents import DocumentsMode

Layer = Mapping[str, Any]  # of a stack, as in a matrix file

TORCH = "torch==2.15.0"  # that of constraints.txt
ON_TORCH: Layer = {"packages": [TORCH]}


@dataclass(frozen=True, kw_only=True)
class Pin:
    """Where a tree of one project names the commit of another that it is developed with."""

    project: str  # the other: a name of PROJECTS
    submodule: str = ""  # path of a git submodule
    source: str = ""  # distribution in [tool.uv.sources] of pyproject.toml, with `git` and `rev`


@dataclass(frozen=True, kw_only=True)
class Project:
    """A value of `package` in a layer with `checkout`."""

    name: str  # also in names of files: lower case, digits and hyphens
    title: str  # as its own pages write it
    distribution: str  # name of its wheel, whether or not there is one
    url: str = ""  # of its repository, for trees that pin a commit of it
    # Names of its repository and of forks that keep another one. They decide between projects whose modules are all in
    # a tree: the last part of the URL of the remote `origin`, or the name of the tree's folder, without .git.
    repositories: tuple[str, ...]
    modules: tuple[str, ...]  # that a checkout must provide; a tree that has the first one is of this project
    folders: tuple[str, ...] = ("",)  # of the checkout, put on the module search path
    # Command that makes a commit's worktree importable, e.g. builds an extension in place: the `setup` of layers with a
    # `ref` that have none. A working tree is used as it is.
    setup: str = ""
    # Requirements that a run needs, besides torch, to import the modules; added to every stack with a checkout of it.
    # Without the Megatron that a project uses: a lower layer chooses its release.
    needs: tuple[str, ...] = ()
    # Layers below a checkout where no matrix names any: for the recipe `working-tree`, and for `harness bisect --repo`.
    runs_on: tuple[Layer, ...]
    # The same for trees whose version is before these, the oldest first, e.g. {"0.9": ...}.
    runs_on_before: Mapping[str, tuple[Layer, ...]] = field(default_factory=dict)
    version_file: str = ""  # of a tree: the first version in its text is the tree's
    pins: tuple[Pin, ...] = ()  # come first in the recipe `working-tree`
    data_path: str  # the one that `harness init` tests; it names its trainers
    documents: DocumentsMode = "adversarial"  # that this path takes in every layout
    options: Mapping[str, Any] = field(default_factory=dict)  # packing options that its users run it with, not defaults
    # For `harness run gate`: the name of a shipped matrix, or the path of one that a plug-in has; empty: there is none.
    gate: str = ""

    def __post_init__(self) -> None:
        if not re.fullmatch("[a-z0-9][a-z0-9-]{0,31}", self.name):
            raise ValueError(f"the name {self.name!r} of a project must be lower case letters, digits and hyphens")
        for what in ("repositories", "modules", "folders", "runs_on"):
            if not getattr(self, what) or isinstance(getattr(self, what), str):
                raise ValueError(f"{what} of the project {self.name!r} must be a tuple with at least one item")

    @property
    def signs(self) -> list[str]:
        """Paths in a checkout, one of which each checkout of the project has: its first module."""
        first = self.modules[0].replace(".", "/")
        return [f"{folder}/{path}".lstrip("/") for folder in self.folders for path in (first, f"{first}.py")]

    def layers_of(self, version: str) -> tuple[Layer, ...]:
        """What a tree of this version runs on; `version`: e.g. "0.8.0.dev", empty if it is not known."""
        known = _release(version)
        fitting = (layers for before, layers in self.runs_on_before.items() if known and known < _release(before))
        return next(fitting, self.runs_on)


def _release(version: str) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", version)[:3]]
