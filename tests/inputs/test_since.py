"""`--since REF`: the stacks of a matrix at two states of the current checkout."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from harness.core.errors import InputError, Problem
from harness.inputs.since import with_earlier_stacks
from tests.launch.stacks.test_checkout import git

WORKING_TREE = "working-tree"


@pytest.fixture
def commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The first of two commits of a checkout of Megatron-LM, which is the current folder."""
    (tmp_path / "megatron" / "core").mkdir(parents=True)
    (tmp_path / "megatron" / "core" / "__init__.py").touch()
    git(tmp_path, "init", "-q")
    for subject in ("first", "second"):
        (tmp_path / subject).touch()
        git(tmp_path, "add", ".")
        git(tmp_path, "-c", "user.name=t", "-c", "user.email=t", "commit", "-qm", subject)
    monkeypatch.chdir(tmp_path)
    return git(tmp_path, "rev-parse", "HEAD~1").strip()


def changed(ref: str, **values: Any) -> dict[str, Any]:
    made: dict[str, Any] = with_earlier_stacks(ref)(values)
    return made


def problem_of(ref: str, **values: Any) -> Problem:
    with pytest.raises(InputError) as caught:
        changed(ref, **values)
    (problem,) = caught.value.problems
    return problem


def test_the_recipe_gets_a_twin_at_the_commit(commit: str) -> None:
    made = changed("HEAD~1", matrix={"stack": WORKING_TREE, "tp": [1, 2]})
    assert made["matrix"] == {"stack": [WORKING_TREE, "working-tree-since"], "tp": [1, 2]}
    checkout, *beneath = made["stacks"]["working-tree-since"]
    assert checkout == {"checkout": str(Path.cwd()), "package": "megatron-lm", "ref": commit}
    assert beneath


def test_a_named_stack_keeps_its_other_layers(commit: str) -> None:
    env = {"env": {"A": "1"}}
    made = changed(commit, stacks={"fork": [env, WORKING_TREE]}, matrix={"stack": ["fork"]})
    first, second, *_ = made["stacks"]["fork-since"]
    assert (first, second["ref"], made["matrix"]["stack"]) == (env, commit, ["fork", "fork-since"])


def test_stacks_of_releases_have_no_twin(commit: str) -> None:
    made = changed(commit, matrix={"stack": [WORKING_TREE, "core-0.19.2"]})
    assert made["matrix"]["stack"] == [WORKING_TREE, "core-0.19.2", "working-tree-since"]


def test_a_matrix_without_the_working_tree_is_refused(commit: str) -> None:
    assert "needs an axis `stack` with working-tree" in problem_of(commit, matrix={"tp": [1]}).message


def test_a_commit_that_is_not_there_is_refused(commit: str) -> None:
    problem = problem_of("no-such-branch", matrix={"stack": WORKING_TREE})
    assert (problem.message, problem.found) == (f"{Path.cwd()} has no such commit", "'no-such-branch'")


def test_outside_a_checkout_it_says_where_to_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert "in none" in problem_of("HEAD", matrix={"stack": WORKING_TREE}).message
