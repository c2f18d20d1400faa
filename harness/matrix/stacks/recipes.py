"""Recipes: stacks that come with the harness, by name. Pure.

A matrix may use a recipe without defining it. Each recipe is run by a shipped matrix, with these pins;
tests/matrix/stacks/test_recipes.py checks which.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from harness.core.stack import Checkout, stack_name
from harness.matrix.problems import KeyPath, Problems
from harness.upstreams.megatron_bridge.project import BENEATH, BENEATH_NEWEST, NEWEST
from harness.upstreams.megatron_lm.project import MEGATRON_LM
from harness.upstreams.project import ON_TORCH, Layer
from harness.upstreams.skyrl import project as skyrl
from harness.upstreams.table import PROJECTS

# Imported by modules that runs use, but not declared by the distribution (megatron.training in megatron-core wheels).
UNDECLARED: dict[str, tuple[str, ...]] = {"megatron-core": ("six", "regex", "pyyaml")}


WORKING_TREE = "working-tree"


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """A stack that comes with the harness."""

    doc: str
    layers: tuple[Layer, ...]
    matrices: tuple[str, ...] = ()  # shipped ones that run it; without: only by who names it


@dataclass(frozen=True)
class WorkingTree:
    """The checkout that the launcher was started in."""

    folder: str
    project: str  # a key of PROJECTS
    version: str = ""  # that the tree states; empty: not known
    pinned: tuple[Checkout, ...] = ()  # what it is developed with: submodules in place, and commits of repositories


def _core(version: str, *matrices: str, env: Mapping[str, str] | None = None) -> Recipe:
    layer: Layer = {"packages": [f"megatron-core=={version}"]} | ({"env": env} if env else {})
    return Recipe(doc=f"megatron-core {version}, the wheel", layers=(layer, ON_TORCH), matrices=matrices)


def _bridge(version: str, core: str, transformers: str, *matrices: str) -> Recipe:
    layers: tuple[Layer, ...] = (
        {"packages": [f"megatron-bridge=={version}"], "no_deps": True},
        {"packages": [f"megatron-core=={core}", f"transformers=={transformers}"]},
        *BENEATH,
    )
    return Recipe(doc=f"Megatron-Bridge {version} on megatron-core {core}", layers=layers, matrices=matrices)


RECIPES: dict[str, Recipe] = {
    "core-0.14.0": _core("0.14.0", "releases"),
    "core-0.15.3": _core("0.15.3", "real_faults", env={"TORCH_CUDA_ARCH_LIST": "9.0"}),  # to import it without a GPU
    "core-0.16.1": _core("0.16.1", "releases"),
    "core-0.17.1": _core("0.17.1", "releases", "issue_4092"),
    "core-0.18.2": _core("0.18.2", "releases", "nightly"),
    "core-0.19.2": _core("0.19.2", "releases", "nightly"),
    "bridge-0.4.2": _bridge("0.4.2", "0.17.1", "5.3.0", "releases"),
    "bridge-0.5.0": _bridge("0.5.0", "0.18.2", "5.8.1", "releases"),
    "bridge-0.6.2": Recipe(
        doc="Megatron-Bridge 0.6.2 on megatron-core 0.19.2, and its trainer",
        layers=(NEWEST, *BENEATH_NEWEST),
        matrices=("trainer_bridge", "adapters", "nightly"),
    ),
    "skyrl-0.4.0": Recipe(
        doc="SkyRL 0.4.0 on Megatron-Bridge 0.6.2, and its trainer",
        layers=({"packages": ["skyrl==0.4.0"], "no_deps": True}, *skyrl.BENEATH),
        matrices=("trainer_skyrl", "clean"),
    ),
    "main": Recipe(
        doc="the newest commit of Megatron-LM's branch main",
        layers=(
            {"checkout": MEGATRON_LM.url, "ref": "main", "package": MEGATRON_LM.name},
            *MEGATRON_LM.runs_on,
        ),
    ),
    WORKING_TREE: Recipe(
        doc="the checkout that you are in, of a project that `harness list projects` shows, with its changes",
        layers=(),
        matrices=("gate",),
    ),
}

TreeOf = Callable[[], WorkingTree]


def recipe_layers(name: str, tree_of: TreeOf) -> list[dict[str, Any]]:
    """Return the layers of a recipe, as in a matrix file, the top one first."""
    if name != WORKING_TREE:
        return [dict(layer) for layer in RECIPES[name].layers]
    tree = tree_of()
    checkouts = [{"checkout": tree.folder, "package": tree.project}]
    checkouts += [
        {"checkout": pinned.repository, **({"ref": pinned.ref} if pinned.ref else {}), "package": pinned.package}
        for pinned in tree.pinned
    ]
    return [*checkouts, *(dict(layer) for layer in PROJECTS[tree.project].layers_of(tree.version))]


def layers_named(text: str, at: KeyPath, problems: Problems, tree_of: TreeOf) -> list[Any]:
    """Return the layers of the recipe that a definition names; [None], after adding the problem, if there is none."""
    name = recipe_name(text)
    if name in RECIPES:
        return recipe_layers(name, tree_of)
    problems.add(at, "no such recipe", found=repr(text), allowed=", ".join(RECIPES), hint=near_recipe(name))
    return [None]


def recipes_for(requirements: Iterable[str]) -> list[str]:
    """Return the recipes for a package among these, without those that the requirements have as a whole."""
    listed = set(requirements)
    projects = {_project(requirement) for requirement in listed}
    return [
        name
        for name, recipe in RECIPES.items()
        if recipe.layers
        and projects & {_project(requirement) for requirement in recipe.layers[0].get("packages", ())}
        and not listed >= {requirement for layer in recipe.layers for requirement in layer.get("packages", ())}
    ]


def _project(requirement: str) -> str:
    return re.split(r"[^\w.-]", requirement)[0].lower()


def recipe_name(text: str) -> str:
    """Return the name as the table has it: core-0.19.2 for megatron-core==0.19.2; unchanged if it cannot be a name."""
    try:
        return stack_name(text)
    except ValueError:
        return text


def near_recipe(name: str) -> str | None:
    """Return e.g. "did you mean 'core-0.19.2'?"; None if no recipe has a similar name."""
    near = difflib.get_close_matches(name, RECIPES, n=1)
    return f"did you mean {near[0]!r}?" if near else None
