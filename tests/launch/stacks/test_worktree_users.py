"""Worktrees that are removed with their last user."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path

import pytest

from harness.core.stack import Checkout
from harness.launch.stacks.artifact_store import locked
from harness.launch.stacks.checkout import FORGOTTEN_S, commit_of, make, place_of, release_worktrees
from tests.launch.stacks.test_checkout import checkout_of, git, repository


@pytest.fixture
def source(tmp_path: Path, kept: Path) -> Path:
    return repository(tmp_path / "source")


def made(checkout: Checkout, user: str = "") -> Path:
    return make(checkout, commit_of(checkout, fetch=True), print, user=user)


def test_a_worktree_is_removed_with_its_last_user_and_its_record_in_the_repository(source: Path) -> None:
    place = made(checkout_of(source, "old"), "one")
    assert made(checkout_of(source, "old"), "two") == place
    assert release_worktrees("one") == []
    assert (place / "code.py").exists()
    assert release_worktrees("two") == [place]
    assert not place.exists()
    assert git(source, "worktree", "list").splitlines() == [git(source, "worktree", "list").splitlines()[0]]
    assert sorted(path.name for path in place.parent.iterdir()) == [f".{place.name}.lock"]
    assert (made(checkout_of(source, "old"), "one") / "code.py").exists()


def test_a_worktree_that_was_requested_without_a_user_is_kept(source: Path) -> None:
    before = made(checkout_of(source, "old"))
    made(checkout_of(source, "old"), "bisection")
    after = made(checkout_of(source, "main"), "bisection")
    made(checkout_of(source, "main"))
    assert release_worktrees("bisection") == []
    assert before.exists() and after.exists()


def test_only_worktrees_of_the_named_projects_are_released(source: Path) -> None:
    inner, outer, other = (
        made(Checkout(package=name, repository=str(source), ref="main"), "bisection")
        for name in ("megatron-lm", "skyrl", "skyrl-train")
    )
    assert release_worktrees("bisection", ("skyrl",)) == [outer]
    assert release_worktrees("bisection") == [inner, other]


def test_a_worktree_with_a_forgotten_user_is_removed_by_the_next_release(source: Path) -> None:
    place = made(checkout_of(source, "old"), "gone")
    assert release_worktrees("another") == []
    note = place.with_name(f".{place.name}.users")
    long_ago = time.time() - FORGOTTEN_S - 60
    os.utime(note, (long_ago, long_ago))
    assert release_worktrees("another") == [place]


def test_a_worktree_removed_by_hand_with_its_repository_is_no_error(source: Path) -> None:
    place = made(checkout_of(source, "old"), "one")
    gone = made(checkout_of(source, "main"), "one")
    gone.rename(source.parent / "moved away")
    source.rename(source.parent / "moved too")
    assert set(release_worktrees("one")) == {place, gone}
    assert not place.exists()


def test_a_release_waits_for_a_concurrent_make_that_keeps_the_worktree(source: Path) -> None:
    """Another process is inside make() when the last user releases the worktree, and marks it as kept."""
    place = made(checkout_of(source, "old"), "one")
    removed: list[Path] = []
    thread = threading.Thread(target=lambda: removed.extend(release_worktrees("one")))
    with locked(place):
        thread.start()
        thread.join(0.2)
        assert thread.is_alive()
        place.with_name(f".{place.name}.users").unlink()
    thread.join()
    assert removed == []
    assert place.exists()


def test_the_users_file_of_an_incomplete_worktree_is_harmless(source: Path) -> None:
    checkout = checkout_of(source, "old")
    place = place_of(checkout, commit_of(checkout, fetch=True))
    place.parent.mkdir(parents=True)
    place.with_name(f".{place.name}.users").write_text("killed\n")
    assert made(checkout, "killed") == place
    assert release_worktrees("killed") == [place]
