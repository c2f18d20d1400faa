"""The checkout that the launcher was started in."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.infra.inputs.working_tree import working_tree
from harness.plan.stacks.projects import PROJECTS
from harness.plan.stacks.recipes import WorkingTree


@pytest.mark.parametrize("project", PROJECTS)
def test_it_is_found_from_any_folder_in_it(project: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    inner = tmp_path / "tree" / PROJECTS[project].signs[0]
    inner.mkdir(parents=True)
    (tmp_path / "tree" / ".git").write_text("gitdir: elsewhere\n")  # as in a worktree
    monkeypatch.chdir(inner)
    assert working_tree() == WorkingTree(str(tmp_path / "tree"), project)


@pytest.mark.parametrize("inside", ["megatron/core", "docs"])
def test_a_folder_without_git_or_of_another_project_stands_for_itself(
    inside: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / inside).mkdir(parents=True)
    if inside == "docs":
        (tmp_path / ".git").mkdir()
    monkeypatch.chdir(tmp_path)
    assert working_tree() == WorkingTree(str(tmp_path), "megatron-lm")
