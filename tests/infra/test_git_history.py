"""Histories of real git repositories."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from harness.core.errors import InfrastructureError
from harness.infra.git_history import Repository
from tests.launch.stacks.test_checkout import git


def commit(folder: Path, subject: str, **files: str) -> str:
    """Commit these files, whose names have `__` for `/`; returns the hash."""
    for name, text in files.items():
        path = folder / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        git(folder, "add", str(path))
    git(folder, "commit", "--quiet", "--allow-empty", "-m", subject)
    return git(folder, "rev-parse", "HEAD")


@pytest.fixture
def source(tmp_path: Path) -> Path:
    git(tmp_path, "init", "--quiet", "--initial-branch=main")
    return tmp_path


def test_a_history_has_the_commits_reachable_from_the_new_end_only(source: Path) -> None:
    first, second, third = (commit(source, name) for name in ("one", "two", "three"))
    history = Repository(source).history(first, third)
    assert history.points == (second, third)
    assert history.parents == {second: (first,), third: (second,)}


def test_a_history_has_both_sides_of_a_merge_unless_limited_to_first_parents(source: Path) -> None:
    root = commit(source, "root")
    git(source, "checkout", "--quiet", "-b", "side")
    side = commit(source, "side")
    git(source, "checkout", "--quiet", "main")
    main = commit(source, "main")
    git(source, "merge", "--quiet", "--no-ff", "-m", "merge", "side")
    merge = git(source, "rev-parse", "HEAD")
    repository = Repository(source)
    whole = repository.history(root, merge)
    assert set(whole.points) == {side, main, merge}
    assert whole.points[-1] == merge
    assert whole.parents[merge] == (main, side)
    assert repository.history(root, merge, first_parent=True).parents == {main: (root,), merge: (main,)}
    assert repository.merge_bases(side, main) == (root,)
    assert repository.is_ancestor(side, merge)
    assert not repository.is_ancestor(merge, side)


def test_contents_are_equal_where_the_paths_are(source: Path) -> None:
    first = commit(source, "one", **{"a__x.py": "1", "b.py": "1"})
    second = commit(source, "two", **{"b.py": "2"})
    third = commit(source, "three", **{"a__x.py": "2"})
    contents = Repository(source).contents([first, second, third], ["a", "gone"])
    assert contents[first] == contents[second] != contents[third]
    assert Repository(source).changed(first, second) == ("b.py",)


def test_the_description_of_a_commit(source: Path) -> None:
    first = commit(source, "one")
    second = commit(source, "Second: of | them")
    about = Repository(source).about(second)
    assert (about.subject, about.author, about.parents) == ("Second: of | them", "t", (first,))
    assert about.date[:2] == "20"


def test_submodules_are_listed_with_their_pinned_commits(source: Path) -> None:
    pin = commit(source, "to be pinned")
    git(source, "update-index", "--add", "--cacheinfo", f"160000,{pin},3rdparty/other")
    git(source, "commit", "--quiet", "-m", "pin")
    head = git(source, "rev-parse", "HEAD")
    assert Repository(source).submodules(head) == {"3rdparty/other": pin}
    assert Repository(source).submodules(pin) == {}


def test_missing_objects_are_empty(source: Path) -> None:
    head = commit(source, "one", file="x")
    found = Repository(source).objects([f"{head}:file", f"{head}:gone", f"{head}^{{tree}}"])
    assert [bool(value) for value in found.values()] == [True, False, True]


def test_an_error_of_git_is_reported_with_its_message(tmp_path: Path) -> None:
    with pytest.raises(InfrastructureError, match="not a git repository"):
        Repository(tmp_path).about("HEAD")


@pytest.mark.parametrize("subject", ["", "\x1f", "a\x1fb", "\x1b[2J", "::error::x", "one\x1etwo\x1dthree"])
def test_any_subject_is_read_unchanged(tmp_path: Path, subject: str) -> None:
    """Also that of a shallow boundary, whose parents are missing."""
    origin, clone = tmp_path / "origin", tmp_path / "clone"
    identity = ["-c", "user.name=A\x1fB", "-c", "user.email=a@example.org"]
    subprocess.run(["git", "init", "--quiet", str(origin)], check=True)
    for text in ("first", subject):
        message = ["commit", "--quiet", "--allow-empty", "--allow-empty-message", "--cleanup=verbatim", "-m", text]
        subprocess.run(["git", *identity, *message], cwd=origin, check=True)
    subprocess.run(["git", "clone", "--quiet", "--depth=1", f"file://{origin}", str(clone)], check=True)
    for place, parents in ((origin, 1), (clone, 0)):
        about = Repository(place).about("HEAD")
        assert about.subject == subject
        assert len(about.parents) == parents
        assert about.date.startswith("2")
