"""Worktrees of real git repositories."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from harness.edge.stack_checkout import commit_of, make, place_of
from harness.words.errors import InfrastructureError, InputError
from harness.words.stack import Checkout

_IDENTITY = ("-c", "user.name=t", "-c", "user.email=t@example.org", "-c", "commit.gpgsign=false")


def git(folder: Path, *arguments: str) -> str:
    argv = ["git", "-C", str(folder), *_IDENTITY, *arguments]
    return subprocess.run(argv, capture_output=True, text=True, check=True).stdout.strip()


def repository(folder: Path) -> Path:
    """A repository of two commits; `old` is a tag on the first."""
    folder.mkdir()
    git(folder, "init", "--quiet", "--initial-branch=main")
    for text in ("first", "second"):
        (folder / "code.py").write_text(f"# {text}\n")
        git(folder, "add", "code.py")
        git(folder, "commit", "--quiet", "-m", text)
        if text == "first":
            git(folder, "tag", "old")
    return folder


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return repository(tmp_path / "source")


def checkout_of(source: Path | str, ref: str) -> Checkout:
    return Checkout(package="megatron-lm", repository=str(source), ref=ref)


@pytest.mark.parametrize(("ref", "text"), [("old", "first"), ("main", "second"), ("HEAD~1", "first")])
@pytest.mark.usefixtures("kept")
def test_a_ref_becomes_a_commit_and_its_worktree(source: Path, ref: str, text: str) -> None:
    checkout = checkout_of(source, ref)
    commit = commit_of(checkout, fetch=True)
    assert commit == git(source, "rev-parse", ref)
    place = make(checkout, commit, print)
    assert (place / "code.py").read_text() == f"# {text}\n"
    assert git(place, "rev-parse", "HEAD") == commit


@pytest.mark.usefixtures("kept")
def test_a_worktree_is_made_once_and_stays_when_its_branch_moves(source: Path) -> None:
    checkout = checkout_of(source, "main")
    old = commit_of(checkout, fetch=True)
    place = make(checkout, old, print)
    assert make(checkout, old, lambda text: pytest.fail(text)) == place
    git(source, "commit", "--quiet", "--allow-empty", "-m", "third")
    new = commit_of(checkout, fetch=True)
    assert new != old
    assert make(checkout, new, print) != place
    assert git(place, "rev-parse", "HEAD") == old


@pytest.mark.usefixtures("kept")
def test_the_users_own_checkout_is_left_as_it_is(source: Path) -> None:
    (source / "code.py").write_text("# being worked on\n")
    checkout = checkout_of(source, "main")
    make(checkout, commit_of(checkout, fetch=True), print)
    assert git(source, "status", "--porcelain") == "M code.py"
    assert git(source, "rev-parse", "--abbrev-ref", "HEAD") == "main"


@pytest.mark.usefixtures("kept")
def test_a_worktree_that_somebody_changed_is_refused(source: Path) -> None:
    checkout = checkout_of(source, "main")
    commit = commit_of(checkout, fetch=True)
    place = make(checkout, commit, print)
    (place / "code.py").write_text("# patched\n")
    with pytest.raises(InfrastructureError, match=r"(?s)is no longer commit .*code\.py.*rm -r"):
        make(checkout, commit, print)


def test_what_a_killed_maker_left_is_replaced(source: Path, kept: Path) -> None:
    checkout = checkout_of(source, "main")
    commit = commit_of(checkout, fetch=True)
    half = place_of(checkout, commit)
    (half / "old").mkdir(parents=True)
    place = make(checkout, commit, print)
    assert (place / "code.py").exists()
    assert not (place / "old").exists()


def test_a_worktree_whose_folder_was_removed_is_made_again(source: Path, kept: Path) -> None:
    checkout = checkout_of(source, "main")
    commit = commit_of(checkout, fetch=True)
    make(checkout, commit, print).rename(kept / "moved away")
    assert (make(checkout, commit, print) / "code.py").exists()


@pytest.mark.usefixtures("kept")
def test_a_url_is_mirrored_and_fetched_when_it_lacks_the_ref(source: Path) -> None:
    url = f"file://{source}"
    first = commit_of(checkout_of(url, "main"), fetch=True)
    git(source, "commit", "--quiet", "--allow-empty", "-m", "third")
    git(source, "tag", "new")
    commit = commit_of(checkout_of(url, "new"), fetch=True)
    assert commit == git(source, "rev-parse", "new") != first
    assert (make(checkout_of(url, "new"), commit, print) / "code.py").exists()


@pytest.mark.usefixtures("kept")
def test_without_fetching_a_url_that_is_not_mirrored_is_said_to_be_unknown(source: Path) -> None:
    with pytest.raises(InputError, match="has no commit, tag or branch 'main'"):
        commit_of(checkout_of(f"file://{source}", "main"), fetch=False)


@pytest.mark.parametrize("ref", ["no-such-branch", "0123456789", "--all"])
@pytest.mark.usefixtures("kept")
def test_a_ref_that_is_not_there_is_named(source: Path, ref: str) -> None:
    with pytest.raises(InputError, match=f"has no commit, tag or branch '{ref}'"):
        commit_of(checkout_of(source, ref), fetch=True)


@pytest.mark.usefixtures("kept")
def test_a_repository_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no git repository at"):
        commit_of(checkout_of(tmp_path / "none", "main"), fetch=True)
