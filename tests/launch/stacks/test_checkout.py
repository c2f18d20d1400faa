"""Worktrees of real git repositories."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from harness.core.errors import InfrastructureError, InputError, NotRevertibleError
from harness.core.stack import Checkout
from harness.launch.stacks.checkout import (
    changes_of,
    code_at,
    commit_of,
    make,
    place_of,
    remote_of,
    reverted_of,
    set_up,
)

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


def checkout_of(source: Path | str, ref: str, *revert: str) -> Checkout:
    return Checkout(package="megatron-lm", repository=str(source), ref=ref, revert=revert)


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
def test_the_users_own_checkout_is_not_changed(source: Path) -> None:
    (source / "code.py").write_text("# being worked on\n")
    checkout = checkout_of(source, "main")
    make(checkout, commit_of(checkout, fetch=True), print)
    assert git(source, "status", "--porcelain") == "M code.py"
    assert git(source, "rev-parse", "--abbrev-ref", "HEAD") == "main"


@pytest.mark.usefixtures("kept")
def test_a_changed_worktree_is_refused(source: Path) -> None:
    checkout = checkout_of(source, "main")
    commit = commit_of(checkout, fetch=True)
    place = make(checkout, commit, print)
    (place / "code.py").write_text("# patched\n")
    with pytest.raises(InfrastructureError, match=r"(?s)is no longer commit .*code\.py.*rm -r"):
        make(checkout, commit, print)


def test_an_incomplete_worktree_is_replaced(source: Path, kept: Path) -> None:
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
def test_without_fetching_a_ref_of_an_unmirrored_url_is_unknown(source: Path) -> None:
    with pytest.raises(InputError, match="has no commit, tag or branch 'main'"):
        commit_of(checkout_of(f"file://{source}", "main"), fetch=False)


@pytest.mark.usefixtures("kept")
def test_a_folder_that_is_no_checkout_is_named_with_what_it_lacks(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"is no working tree of megatron-lm: it has no megatron/core .start the comm"):
        commit_of(checkout_of(tmp_path, ""), fetch=False)


@pytest.mark.usefixtures("kept")
def test_a_tree_without_a_commit_is_named_with_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "megatron" / "core").mkdir(parents=True)
    with pytest.raises(InputError, match=r"has Megatron-LM, but no commit of it .only a git checkout can"):
        commit_of(checkout_of(tmp_path, ""), fetch=False)


@pytest.mark.parametrize("ref", ["no-such-branch", "0123456789", "--all"])
@pytest.mark.usefixtures("kept")
def test_a_ref_that_is_not_there_is_named(source: Path, ref: str) -> None:
    with pytest.raises(InputError, match=f"has no commit, tag or branch '{ref}'"):
        commit_of(checkout_of(source, ref), fetch=True)


@pytest.mark.usefixtures("kept")
def test_a_repository_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no git repository at"):
        commit_of(checkout_of(tmp_path / "none", "main"), fetch=True)


@pytest.fixture
def features(source: Path) -> Path:
    """The repository with three more commits: tags `one` and `two` each add a file, `undone` reverts `two`."""
    for name in ("one", "two"):
        (source / f"{name}.py").write_text(f"# {name}\n")
        git(source, "add", ".")
        git(source, "commit", "--quiet", "-m", name)
        git(source, "tag", name)
    git(source, "revert", "--no-edit", "two")
    git(source, "tag", "undone")
    return source


def reverted_tree(checkout: Checkout) -> Path:
    commit = commit_of(checkout, fetch=True)
    return make(checkout, commit, print, reverted_of(checkout, commit))


@pytest.mark.usefixtures("kept")
def test_commits_are_reverted_in_the_given_order_without_a_name_to_commit_with_and_the_repository_stays(
    features: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "no configuration"))
    monkeypatch.setenv("GIT_CONFIG_COUNT", "2")
    for number, (key, value) in enumerate((("rerere.enabled", "true"), ("user.useConfigOnly", "true"))):
        monkeypatch.setenv(f"GIT_CONFIG_KEY_{number}", key)
        monkeypatch.setenv(f"GIT_CONFIG_VALUE_{number}", value)
    (features / "code.py").write_text("# being worked on\n")
    before = (git(features, "for-each-ref"), git(features, "status", "--porcelain"))
    place = reverted_tree(checkout_of(features, "two", "two", "HEAD~3"))  # HEAD~3 is the commit "second"
    assert sorted(path.name for path in place.iterdir()) == [".git", "code.py", "one.py"]
    assert (place / "code.py").read_text() == "# first\n"
    assert git(place, "rev-parse", "HEAD") == git(features, "rev-parse", "two")
    assert "currently reverting" not in git(place, "status")
    assert (git(features, "for-each-ref"), git(features, "status", "--porcelain")) == before
    assert not (features / ".git" / "rr-cache").exists()


@pytest.mark.usefixtures("kept")
def test_a_worktree_is_identified_by_its_commit_and_the_reverted_ones(features: Path) -> None:
    both = checkout_of(features, "two", "two", "one")
    commit = commit_of(both, fetch=True)
    place = reverted_tree(both)
    assert make(both, commit, lambda text: pytest.fail(text), reverted_of(both, commit)) == place
    assert (
        len({place, reverted_tree(checkout_of(features, "two", "one")), reverted_tree(checkout_of(features, "two"))})
        == 3
    )
    assert not (place / "one.py").exists()


@pytest.mark.parametrize("staged", [False, True])
@pytest.mark.usefixtures("kept")
def test_a_changed_worktree_with_reverts_is_refused(features: Path, staged: bool) -> None:
    checkout = checkout_of(features, "two", "two")
    place = reverted_tree(checkout)
    (place / "one.py").write_text("# patched\n")
    if staged:
        git(place, "add", ".")
    with pytest.raises(InfrastructureError, match=r"(?s)is no longer commit .*one\.py.*rm -r"):
        reverted_tree(checkout)


def test_a_conflict_names_commit_and_files_and_leaves_nothing(features: Path, kept: Path) -> None:
    (features / "code.py").write_text("# third\n")
    git(features, "commit", "--quiet", "--all", "-m", "third")
    worktrees = git(features, "worktree", "list")
    first = git(features, "rev-parse", "old")[:12]
    message = rf"^megatron-lm at main without one, old: reverting {first} conflicts in code\.py; first revert"
    with pytest.raises(NotRevertibleError, match=message):
        reverted_tree(checkout_of(features, "main", "one", "old"))
    assert git(features, "worktree", "list") == worktrees
    assert [path.name for path in (kept / "checkouts").iterdir() if not path.name.endswith(".lock")] == []


@pytest.mark.usefixtures("kept")
@pytest.mark.parametrize("removed", [False, True])
def test_tests_that_conflict_stay_as_they_are(source: Path, removed: bool) -> None:
    tests = source / "tests" / "test_code.py"
    tests.parent.mkdir()
    for number in range(3):
        (source / "code.py").write_text(f"# {min(number, 1)}\n")
        tests.write_text(f"# test {number}\n")
        git(source, "add", ".")
        git(source, "commit", "--quiet", "-m", str(number))
    if removed:
        git(source, "rm", "--quiet", "tests/test_code.py")
        git(source, "commit", "--quiet", "-m", "removed")
    fix = git(source, "rev-parse", f"HEAD~{1 + removed}")
    place = reverted_tree(checkout_of(source, "main", fix))
    assert (place / "code.py").read_text() == "# 0\n"
    assert (place / "tests" / "test_code.py").exists() is not removed
    assert removed or (place / "tests" / "test_code.py").read_text() == "# test 2\n"
    assert "both modified" not in git(place, "status")


@pytest.mark.usefixtures("kept")
def test_a_revert_that_changes_nothing_is_an_error(features: Path) -> None:
    assert (reverted_tree(checkout_of(features, "undone", "undone")) / "two.py").exists()
    with pytest.raises(NotRevertibleError, match="changes nothing: a later commit has reverted it already"):
        reverted_tree(checkout_of(features, "undone", "two"))


def test_all_commits_that_cannot_be_reverted_are_named(features: Path, kept: Path) -> None:
    git(features, "checkout", "--quiet", "-b", "side", "old")
    git(features, "commit", "--quiet", "--allow-empty", "-m", "beside")
    git(features, "checkout", "--quiet", "main")
    git(features, "merge", "--quiet", "--no-edit", "side")
    checkout = checkout_of(features, "main", "no-such", "one", git(features, "rev-parse", "one"), "main")
    with pytest.raises(InputError) as caught:
        reverted_of(checkout, commit_of(checkout, fetch=True))
    assert [str(problem) for problem in caught.value.problems] == [
        f"{features} has no commit 'no-such' to revert",
        f"cannot revert {checkout.revert[2]}: it is listed twice",
        "cannot revert main: it is a merge (name the commits that it brought in, the newest first)",
    ]
    other = checkout_of(features, "undone", "side")
    with pytest.raises(InputError, match="cannot revert side: it is not in the history of undone"):
        reverted_of(other, commit_of(other, fetch=True))
    assert not kept.exists()


@pytest.mark.usefixtures("kept")
def test_a_mirror_that_lacks_a_commit_to_revert_is_fetched(source: Path) -> None:
    url = f"file://{source}"
    commit_of(checkout_of(url, "main"), fetch=True)
    git(source, "commit", "--quiet", "--allow-empty", "-m", "third")
    third = git(source, "rev-parse", "main")
    checkout = checkout_of(url, "main", third)
    assert reverted_of(checkout, commit_of(checkout, fetch=True)) == (third,)


def test_the_remote_is_found_through_clones_of_this_machine(source: Path, tmp_path: Path) -> None:
    assert remote_of(checkout_of(source, "main")) == ""
    git(source, "remote", "add", "origin", "https://github.com/NVIDIA/Megatron-LM.git")
    git(tmp_path, "clone", "--quiet", str(source), "clone")
    assert remote_of(checkout_of(tmp_path / "clone", "main")) == "https://github.com/NVIDIA/Megatron-LM.git"
    assert remote_of(checkout_of("https://example.org/x.git", "main")) == "https://example.org/x.git"


def test_clones_of_each_other_have_no_remote(source: Path, tmp_path: Path) -> None:
    git(tmp_path, "clone", "--quiet", str(source), "clone")
    git(source, "remote", "add", "origin", str(tmp_path / "clone"))
    assert remote_of(checkout_of(source, "main")) == ""


@pytest.mark.usefixtures("kept")
def test_a_setup_command_runs_once_in_its_own_worktree_with_the_stacks_python_first(source: Path) -> None:
    checkout = replace(checkout_of(source, "main"), setup="command -v python3 >> built; pwd >> built")
    commit = commit_of(checkout, fetch=True)
    place = make(checkout, commit, print)
    assert place != place_of(checkout_of(source, "main"), commit)
    for _ in range(2):
        set_up(checkout, place, sys.executable, print)
    python, folder = (place / "built").read_text().splitlines()
    assert Path(python).parent == Path(sys.executable).parent
    assert Path(folder) == place
    assert make(checkout, commit, lambda text: pytest.fail(text)) == place


@pytest.mark.usefixtures("kept")
def test_a_failed_setup_command_is_reported_with_its_output_and_tried_again(source: Path) -> None:
    checkout = replace(checkout_of(source, "main"), setup="echo no compiler; test -e repaired")
    place = make(checkout, commit_of(checkout, fetch=True), print)
    with pytest.raises(InfrastructureError, match=r"exit code 1(.|\n)*no compiler"):
        set_up(checkout, place, sys.executable, print)
    (place / "repaired").touch()
    set_up(checkout, place, sys.executable, print)


@pytest.mark.usefixtures("kept")
def test_without_a_ref_the_working_tree_itself_is_used(source: Path) -> None:
    checkout = checkout_of(source, "")
    commit = commit_of(checkout, fetch=True)
    assert commit == git(source, "rev-parse", "HEAD")
    assert make(checkout, commit, lambda text: pytest.fail(text)) == source
    assert not changes_of(source)
    assert code_at(checkout, commit, source) == commit
    (source / "code.py").write_text("# being worked on\n")
    first = code_at(checkout, commit, source)
    assert first == f"{commit}+changes.{changes_of(source)}"
    (source / "code.py").write_text("# being worked on more\n")
    assert code_at(checkout, commit, source) not in (first, commit)
    (source / "code.py").write_text("# being worked on\n")
    assert code_at(checkout, commit, source) == first
    assert code_at(checkout_of(source, "main"), commit, source) == commit  # a ref means the commit


def test_changes_in_a_submodule_count_and_start_no_program_that_it_names(source: Path, tmp_path: Path) -> None:
    inner, proof = repository(source / "inner"), tmp_path / "proof"
    git(source, "-c", "advice.addEmbeddedRepo=false", "add", "inner")
    git(source, "commit", "--quiet", "-m", "with a submodule")
    (inner / ".git" / "info" / "attributes").write_text("code.py filter=odd\n")
    git(inner, "config", "filter.odd.clean", f"touch {proof}; cat")
    assert not changes_of(source)
    seen = set()
    for text in ("# being worked on\n", "# being worked on more\n"):
        (inner / "code.py").write_text(text)
        seen.add(changes_of(source))
    assert len(seen - {""}) == 2
    assert not proof.exists()


@pytest.mark.usefixtures("kept")
def test_a_url_that_cannot_be_cloned_names_the_setting_that_leads_to_a_clone(
    source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"file://{source.parent}/elsewhere"
    with pytest.raises(InfrastructureError, match=f"insteadOf {url}"):
        commit_of(checkout_of(url, "main"), fetch=True)
    monkeypatch.setenv("GIT_CONFIG_COUNT", "1")
    monkeypatch.setenv("GIT_CONFIG_KEY_0", f"url.{source}.insteadOf")
    monkeypatch.setenv("GIT_CONFIG_VALUE_0", url)
    assert commit_of(checkout_of(url, "main"), fetch=True) == git(source, "rev-parse", "main")
