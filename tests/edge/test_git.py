from __future__ import annotations

from pathlib import Path

import pytest

from harness.edge import git
from harness.words.errors import InfrastructureError


def test_a_hook_of_another_repository_does_not_redirect_commands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("here", "there"):
        (tmp_path / name).mkdir()
        git.output(tmp_path / name, "init", "--quiet")
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "there" / ".git"))
    assert git.output(tmp_path / "here", "rev-parse", "--show-toplevel").strip() == str(tmp_path / "here")


def test_a_failed_command_says_what_where_and_why(tmp_path: Path) -> None:
    with pytest.raises(InfrastructureError, match=rf"git rev-parse --verify in {tmp_path} failed:\n.*not a git repo"):
        git.output(tmp_path, "rev-parse", "--verify", "HEAD")


def test_git_that_is_not_there_is_infrastructure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(InfrastructureError, match="git status did not end well"):
        git.run(tmp_path, "status")


def test_what_is_given_is_read(tmp_path: Path) -> None:
    git.output(tmp_path, "init", "--quiet")
    hashed = git.output(tmp_path, "hash-object", "--stdin", stdin="some text\n").strip()
    assert hashed == "7b57bd29ea8afbdeb9bac64cf7074f4b531492a8"  # what git 2.39 prints for this text by a pipe
