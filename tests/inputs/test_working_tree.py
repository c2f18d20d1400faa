"""The checkout that the launcher was started in."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from harness.core.errors import InputError
from harness.core.stack import Checkout
from harness.infra.files import matrix_path
from harness.inputs.working_tree import matrix_here, working_tree
from harness.matrix.stacks.recipes import WorkingTree
from harness.upstreams.table import PROJECTS
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
    pinned = Checkout(package="megatron-lm", repository="https://github.com/NVIDIA/Megatron-LM", ref=commit)
    assert working_tree() == WorkingTree(str(tmp_path), "megatron-bridge", pinned=(pinned,))
    (tmp_path / "3rdparty/Megatron-LM/megatron/core").mkdir(parents=True)
    pinned = Checkout(package="megatron-lm", repository=str(tmp_path / "3rdparty/Megatron-LM"), ref="")
    assert working_tree() == WorkingTree(str(tmp_path), "megatron-bridge", pinned=(pinned,))


SOURCES = """\
[project]
name = "skyrl"
[tool.uv.sources]
skyrl-gym = { path = "./skyrl-gym", editable = true }
torch = [
    { index = "a", marker = "sys_platform == 'linux'" },
]
megatron-bridge = {git = "https://host/fork/Megatron-Bridge", rev = "91a1", marker = "sys_platform == 'linux'"}
# megatron-core main branch
megatron-core = [
    {git = "https://host/fork/Megatron-LM", rev = "71e4", marker = "sys_platform == 'linux'"},
]
[tool.black]
megatron-core = {git = "https://host/other", rev = "0000"}
"""


def test_skyrl_brings_the_commits_that_its_pyproject_pins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for folder in ("skyrl", ".git"):
        (tmp_path / folder).mkdir()
    monkeypatch.chdir(tmp_path)
    (tmp_path / "pyproject.toml").write_text(SOURCES)
    bridge = Checkout(package="megatron-bridge", repository="https://host/fork/Megatron-Bridge", ref="91a1")
    core = Checkout(package="megatron-lm", repository="https://host/fork/Megatron-LM", ref="71e4")
    assert working_tree() == WorkingTree(str(tmp_path), "skyrl", pinned=(bridge, core))
    (tmp_path / "pyproject.toml").write_text(SOURCES.replace("rev", "tag"))
    assert working_tree() == WorkingTree(str(tmp_path), "skyrl")


def test_a_tree_of_several_projects_is_of_the_one_that_its_repository_is_named_after(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for folder in ("skyrl", "nemo_rl"):
        (tmp_path / "RL" / folder).mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "RL")
    git(tmp_path / "RL", "init", "--quiet")
    assert working_tree().project == "nemo-rl"
    git(tmp_path / "RL", "remote", "add", "origin", "git@host:someone/SkyRL.git")
    assert working_tree().project == "skyrl"


def test_the_gate_is_that_of_the_checkout_that_one_stands_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gate, other = matrix_path("gate"), matrix_path("smoke")
    monkeypatch.chdir(tmp_path)
    assert (matrix_here(gate), matrix_here(other)) == (gate, other)
    for folder in ("skyrl", ".git"):
        (tmp_path / folder).mkdir()
    assert (matrix_here(gate), matrix_here(other)) == (matrix_path("gate_skyrl"), other)
    monkeypatch.setitem(PROJECTS, "skyrl", replace(PROJECTS["skyrl"], gate=""))
    with pytest.raises(InputError, match=r"is a checkout of skyrl, which has no gate"):
        matrix_here(gate)


@pytest.mark.parametrize("inside", ["megatron/core", "docs"])
def test_a_folder_without_git_or_of_another_project_stands_for_itself(
    inside: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / inside).mkdir(parents=True)
    if inside == "docs":
        (tmp_path / ".git").mkdir()
    monkeypatch.chdir(tmp_path)
    assert working_tree() == WorkingTree(str(tmp_path), "megatron-lm")
