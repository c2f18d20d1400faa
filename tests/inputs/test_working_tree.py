"""The checkout that the launcher was started in."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.inputs.working_tree import working_tree
from harness.matrix.stacks.recipes import PROJECTS, WorkingTree
from tests.launch.stacks.test_checkout import git


@pytest.mark.parametrize("project", PROJECTS)
def test_it_is_found_from_any_folder_in_it(project: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    inner = tmp_path / "tree" / PROJECTS[project].signs[0]
    inner.mkdir(parents=True)
    (tmp_path / "tree" / ".git").write_text("gitdir: elsewhere\n")  # as in a worktree
    monkeypatch.chdir(inner)
    assert working_tree() == WorkingTree(str(tmp_path / "tree"), project)


def test_megatron_bridge_brings_the_megatron_of_its_submodule(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    commit = "2a75ac12c54ba6a42b34024756820bf819a2e25f"
    (tmp_path / "src/megatron/bridge").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    git(tmp_path, "init", "--quiet")
    assert working_tree() == WorkingTree(str(tmp_path), "megatron-bridge")
    git(tmp_path, "update-index", "--add", "--cacheinfo", f"160000,{commit},3rdparty/Megatron-LM")
    git(tmp_path, "commit", "--quiet", "-m", "with a submodule")
    assert working_tree() == WorkingTree(str(tmp_path), "megatron-bridge", commit)
    (tmp_path / "3rdparty/Megatron-LM/megatron/core").mkdir(parents=True)
    assert working_tree() == WorkingTree(str(tmp_path), "megatron-bridge", str(tmp_path / "3rdparty/Megatron-LM"))


@pytest.mark.parametrize("inside", ["megatron/core", "docs"])
def test_a_folder_without_git_or_of_another_project_stands_for_itself(
    inside: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / inside).mkdir(parents=True)
    if inside == "docs":
        (tmp_path / ".git").mkdir()
    monkeypatch.chdir(tmp_path)
    assert working_tree() == WorkingTree(str(tmp_path), "megatron-lm")
