"""`--since REF`: beside the current checkout, the same checkout at a commit, in the same cells."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from harness.core.errors import InputError, Problem
from harness.infra import git
from harness.inputs.working_tree import standing_in
from harness.matrix.stacks.recipes import WORKING_TREE, recipe_layers
from harness.upstreams.table import PROJECTS

SUFFIX = "-since"  # of the name of the stack at the commit
_KEY = "--since"


def with_earlier_stacks(ref: str) -> Callable[[Any], Any]:
    """Return a change of a matrix file's values: each stack of the working tree also has cells at `ref`.

    InputError outside a checkout, for a ref that it does not have, and where the matrix does not say which of its
    stacks is the working tree.
    """
    earlier = _layers_at(ref)

    def change(values: Any) -> Any:
        if not isinstance(values, dict) or not isinstance(values.get("matrix"), dict):
            return values  # the matrix's own checks say what is wrong
        stacks = values.get("stacks") or {}
        axis = values["matrix"].get("stack")
        names = axis if isinstance(axis, list) else [axis]
        ours = [name for name in names if _is_working_tree(name, stacks)]
        if not ours:
            message = f"needs an axis `stack` with {WORKING_TREE}, or with a stack that has it as a layer"
            hint = f"add `stack: {WORKING_TREE}` to the section matrix, or name a gate: harness run gate {_KEY} {ref}"
            raise InputError(Problem(key=_KEY, message=message, found=f"stack: {axis}", hint=hint))
        twins = {f"{name}{SUFFIX}": _definition_at(stacks.get(name, WORKING_TREE), earlier) for name in ours}
        matrix = {**values["matrix"], "stack": [*names, *twins]}
        return {**values, "stacks": {**stacks, **twins}, "matrix": matrix}

    return change


def _is_working_tree(name: Any, stacks: Any) -> bool:
    definition = stacks.get(name, name) if isinstance(stacks, dict) else name
    return WORKING_TREE in (definition if isinstance(definition, list) else [definition])


def _definition_at(definition: Any, earlier: list[dict[str, Any]]) -> list[Any]:
    layers = definition if isinstance(definition, list) else [definition]
    return [layer for given in layers for layer in (earlier if given == WORKING_TREE else [given])]


def _layers_at(ref: str) -> list[dict[str, Any]]:
    """Return the layers of the recipe `working-tree` with the checkout at a commit, and its submodule as of then."""
    tree = standing_in()
    if tree is None:
        hint = "change to the folder of your checkout of Megatron-LM, Megatron-Bridge, SkyRL, NeMo-RL or verl first"
        raise InputError(Problem(key=_KEY, message="needs a checkout, and this folder is in none", hint=hint))
    folder = Path(tree.folder)
    parsed = git.run(folder, "rev-parse", "--verify", "--quiet", "--end-of-options", f"{ref}^{{commit}}")
    commit = parsed.stdout.strip()
    if parsed.returncode or not commit:
        hint = "e.g. HEAD~5, a branch such as origin/main, a tag or a commit; `git log` shows commits"
        raise InputError(Problem(key=_KEY, message=f"{folder} has no such commit", found=repr(ref), hint=hint))
    first, *rest = recipe_layers(WORKING_TREE, lambda: tree)
    return [{**first, "ref": commit}, *(_pinned_at(folder, commit, tree.project, layer) for layer in rest)]


def _pinned_at(folder: Path, commit: str, project: str, layer: dict[str, Any]) -> dict[str, Any]:
    """Return the layer of a submodule at the commit that the checkout had of it then; any other layer as it is."""
    pin = next((pin for pin in PROJECTS[project].pins if pin.submodule and pin.project == layer.get("package")), None)
    row = git.run(folder, "ls-tree", commit, pin.submodule).stdout.split() if pin else []  # mode, type, hash and path
    return {**layer, "ref": row[2]} if len(row) == 4 else layer
