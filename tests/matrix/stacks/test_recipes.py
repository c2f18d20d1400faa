"""Recipes are the stacks that shipped matrices run, and need no definition in a matrix."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from harness.core.stack import Checkout, Stack, digest
from harness.inputs.matrix_file import read_matrix
from harness.inputs.working_tree import working_tree
from harness.matrix.load import load, resolved
from harness.matrix.stacks.recipes import RECIPES, WORKING_TREE, WorkingTree, recipe_layers
from harness.upstreams.project import TORCH
from harness.upstreams.table import PROJECTS
from tests.matrix.helpers import matrix_of, no_file, problems_of

UNRUN = "main"  # a moving branch: a matrix that runs it would change its verdict without a change here


def stacks_of(stack: Any, tree: WorkingTree | None = None, **sections: Any) -> Mapping[str, Stack]:
    values = {"name": "t", "matrix": {"packing": "sft", "stack": stack}, **sections}
    here = tree or WorkingTree("/src/lm", "megatron-lm")
    return load(values, file="t.yaml", lines={}, read_lengths=no_file, tree_of=lambda: here).stacks


@pytest.mark.parametrize("name", [name for name in RECIPES if name != UNRUN])
def test_a_recipe_is_what_shipped_matrices_run(name: str, root: Path) -> None:
    assert RECIPES[name].matrices
    made_of = digest(stacks_of(name, working_tree())[name])
    for matrix in RECIPES[name].matrices:
        read = read_matrix(root / "matrices" / f"{matrix}.yaml")
        assert made_of in {digest(stack) for stack in read.stacks.values()}, matrix


def test_torch_is_the_one_that_the_project_is_tested_with(root: Path) -> None:
    assert TORCH in (root / "constraints.txt").read_text().splitlines()
    assert all(TORCH in stacks_of(name)[name].packages for name in RECIPES)


@pytest.mark.parametrize("name", ["core-0.19.2", "megatron-core==0.19.2", "core==0.19.2"])
def test_a_recipe_needs_no_definition(name: str) -> None:
    core = Stack(name="core-0.19.2", packages=("megatron-core==0.19.2", TORCH))
    assert stacks_of(name) == stacks_of([name]) == {"core-0.19.2": core}
    read = matrix_of(matrix={"packing": "sft", "stack": name})
    again = matrix_of(resolved(read))
    assert again.stacks == read.stacks
    assert [row.values["stack"] for row in again.axes.dimensions[1]] == ["core-0.19.2"]


def test_a_recipe_may_be_a_definition_or_a_layer() -> None:
    checkout = {"checkout": "/src/lm", "ref": "main", "package": "megatron-lm"}
    found = stacks_of(["a", "b"], stacks={"a": "megatron-core==0.18.2", "b": [checkout, "core-0.18.2"]})
    assert found["a"] == Stack(name="a", packages=("megatron-core==0.18.2", TORCH))
    assert found["b"].packages == found["a"].packages
    assert found["b"].checkouts == (Checkout(package="megatron-lm", repository="/src/lm", ref="main"),)


def test_a_definition_in_the_file_comes_before_a_recipe_of_that_name() -> None:
    assert stacks_of("main", stacks={"main": {"python": "/p"}}) == {"main": Stack(name="main", interpreter="/p")}


def test_an_unknown_name_is_reported_with_the_nearest_one_and_all_recipes() -> None:
    (found,) = problems_of(matrix={"packing": "sft", "stack": ["bridge-0.6.2", "brigde-0.5.0"]})
    assert (found.key, found.found, found.hint) == ("matrix.stack", "'brigde-0.5.0'", "did you mean 'bridge-0.5.0'?")
    assert found.allowed == ", ".join(["default", *RECIPES])
    (found,) = problems_of(matrix={"packing": "sft", "stack": "pytorch"})
    assert found.hint == "define it under 'stacks:', or name a recipe: `harness list stacks` shows them"


@pytest.mark.parametrize("project", PROJECTS)
def test_the_working_tree_is_on_top_of_what_its_project_needs(project: str) -> None:
    stack = stacks_of(WORKING_TREE, WorkingTree("/src/x", project))[WORKING_TREE]
    assert stack.checkouts == (Checkout(package=project, repository="/src/x", ref=""),)
    assert TORCH in stack.packages
    own = {"megatron-lm": "megatron-core", "nemo-rl": "nemo-rl", "skyrl-train": "skyrl"}.get(project, project)
    assert not any(item.startswith(f"{own}==") for item in (*stack.packages, *stack.no_deps))


@pytest.mark.parametrize(
    ("repository", "ref"), [("/src/x/3rdparty/Megatron-LM", ""), ("https://github.com/NVIDIA/Megatron-LM", "2a75")]
)
def test_below_a_working_tree_is_what_it_pins(repository: str, ref: str) -> None:
    pinned = Checkout(package="megatron-lm", repository=repository, ref=ref)
    stack = stacks_of(WORKING_TREE, WorkingTree("/src/x", "megatron-bridge", pinned=(pinned,)))[WORKING_TREE]
    assert stack.checkouts[1:] == (pinned,)


@pytest.mark.parametrize(
    ("version", "transformers"),
    [("", "5.8.1"), ("0.10.0.dev", "5.8.1"), ("0.9.0", "5.8.1"), ("0.8.0.dev", "4.57.1"), ("0.7", "4.57.1")],
)
def test_an_older_tree_runs_on_older_packages(version: str, transformers: str) -> None:
    stack = stacks_of(WORKING_TREE, WorkingTree("/src/x", "verl", version))[WORKING_TREE]
    assert f"transformers=={transformers}" in stack.packages


def test_the_layers_are_those_of_a_matrix_file() -> None:
    tree = WorkingTree("/src/x", "megatron-lm")
    layers = recipe_layers(WORKING_TREE, lambda: tree)
    assert stacks_of("s", stacks={"s": layers})["s"].checkouts == stacks_of(WORKING_TREE, tree)[WORKING_TREE].checkouts
