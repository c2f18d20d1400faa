"""Bisections of a repository of the installed Megatron's code, in which one commit breaks a data path."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from tests.bisected import CELL, PARAMS, Bisected, checkout, matrix_of
from tests.cli.conftest import harness, write_matrix
from tests.launch.stacks.test_checkout import git

pytestmark = pytest.mark.train


def test_the_guilty_commit_is_found_behind_a_merge_and_a_commit_that_does_not_import(bisected: Bisected) -> None:
    found = bisected.result(bisected.done)
    assert bisected.done.returncode == 0
    assert found.found is not None
    assert bisected.project.name(found.found.name) == "guilty"
    assert (found.found.subject, found.found.author) == ("Commit guilty", "t")
    assert [(bisected.project.name(parent.name), parent.state[-4:]) for parent in found.found.parents] == [
        ("note", "good")
    ]
    assert found.cells == (CELL,)


def test_its_finding_names_the_place(bisected: Bisected) -> None:
    found = bisected.result(bisected.done)
    (first,) = [item for item in found.findings if item.check == "params_agree_plan"]
    assert (first.lane.value, first.where["field"], first.where["ranks"]) == ("metadata", "max_seqlen_q", [1])
    assert first.message in bisected.done.stdout
    assert "Commit guilty" in bisected.done.stdout


def test_a_commit_that_does_not_import_is_skipped_with_the_reason(bisected: Bisected) -> None:
    done = bisected.bisect("--first-parent", good="base", bad="repaired")
    assert done.returncode == 2
    assert "is good: every chosen cell passes" in " ".join(done.stderr.split())
    done = bisected.bisect(good="base", bad="broken")
    assert done.returncode == 3
    assert "SyntaxError" in done.stderr


def test_a_killed_bisection_goes_on_and_says_so(bisected: Bisected) -> None:
    assert "judging both ends" in bisected.killed
    assert "continuing" in bisected.done.stderr
    assert not list(bisected.folder.glob("reports/bisect-*/running.json"))


def test_nothing_is_judged_twice(bisected: Bisected) -> None:
    before = sorted(bisected.folder.glob("reports/bisect-*/runs/*"))
    again = bisected.result(bisected.bisect())
    assert again.found == bisected.result(bisected.done).found
    assert all(point.kept or point.state == "skipped" for point in again.points)
    by_path = bisected.result(bisected.bisect("--paths", PARAMS))
    assert by_path.found is not None
    assert bisected.project.name(by_path.found.name) == "guilty"
    assert len(by_path.points) <= 3
    runs = [path for path in sorted(bisected.folder.glob("reports/bisect-*/runs/*")) if path not in before]
    assert [json.loads((run / "report.json").read_text())["counts"]["PASS"] for run in runs] == [0] * len(runs)


def test_with_first_parents_the_merge_that_brought_it_is_found(bisected: Bisected) -> None:
    found = bisected.result(bisected.bisect("--first-parent"))
    assert found.found is not None
    assert bisected.project.name(found.found.name) == "merge"
    states = {bisected.project.name(parent.name): parent.state for parent in found.found.parents}
    assert states == {"repaired": "good", "guilty": "bad"}


def test_the_command_it_gives_reproduces_the_failure(bisected: Bisected) -> None:
    found = bisected.result(bisected.done)
    words = found.reproduce.split()
    assert words[:2] == ["harness", "run"]
    done = harness(*words[1:], cwd=bisected.folder, env=bisected.environment)
    assert done.returncode == 1, done.stdout + done.stderr
    assert found.findings[0].message in " ".join(done.stdout.split())


@pytest.mark.parametrize(
    ("ends", "options", "said"),
    [
        ({"good": "tip", "bad": "base"}, (), "add --find fixed, or swap the ends"),
        ({"good": "base", "bad": "base"}, (), "names the same commit"),
        ({"good": "gone"}, (), "no commit, tag or branch 'gone'"),
        ({}, ("--paths", "gone.py"), "neither end has these paths"),
        ({"bad": "repaired"}, ("--paths", "README"), "neither end has these paths"),
        ({}, ("--only", "tp8*"), "no such cell"),
    ],
)
def test_ends_and_options_that_cannot_be_meant_are_bad_input(
    bisected: Bisected, ends: dict[str, str], options: tuple[str, ...], said: str
) -> None:
    done = bisected.bisect(*options, **ends)
    assert done.returncode == 2
    assert said in " ".join(done.stderr.split())


def working_tree_matrix(bisected: Bisected, folder: Path) -> Path:
    return write_matrix(folder, matrix_of(checkout(bisected.project.folder, ref="")))


def test_git_bisect_run_goes_by_the_exit_codes(bisected: Bisected, tmp_path: Path) -> None:
    matrix, clone, known = working_tree_matrix(bisected, tmp_path), bisected.project.folder, bisected.project.commits
    git(clone, "bisect", "start", "--first-parent", known["merge"], known["broken"])
    try:
        git(clone, "checkout", "--quiet", known["broken"])
        run = ["run", str(matrix), "--bisect", "--only", f"{CELL}-here", "--run-dir", str(tmp_path)]
        unknown = harness(*run, cwd=tmp_path, env=bisected.environment)
        assert unknown.returncode == 125, unknown.stdout + unknown.stderr
        said = git(clone, "bisect", "run", sys.executable, "-m", "harness", *run)
        assert f"{known['merge']} is the first bad commit" in said
    finally:
        git(clone, "bisect", "reset", "main")


def test_a_working_tree_with_changes_says_so(bisected: Bisected, tmp_path: Path) -> None:
    clone = bisected.project.folder
    (clone / "README.md").write_text("changed\n")
    try:
        done = harness("run", working_tree_matrix(bisected, tmp_path), "--dry-run", cwd=tmp_path)
        assert "megatron-lm working tree" in done.stdout
    finally:
        git(clone, "checkout", "--", "README.md")


@pytest.mark.parametrize("arguments", [["gone.yaml", "--bisect"], ["--bisect", "--typo"]])
def test_bad_input_ends_git_bisect(arguments: list[str], tmp_path: Path) -> None:
    assert harness("run", *arguments, cwd=tmp_path).returncode == 128
