"""The gate: every bug of its table names a cell and counts only if that cell fails as named; one real bug, run."""

from __future__ import annotations

from dataclasses import replace
from fnmatch import fnmatchcase
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from harness.core.outcomes import Finding, Lane, Outcome
from harness.core.run.report import Report
from harness.inputs.matrix_file import read_matrix
from harness.judge.checks.table import CHECKS
from harness.matrix.expansion.expand import expand
from tests.launch.stacks.test_checkout import git, repository
from tests.megatron_clone import CLONE, needs_clone
from tests.sample_report import sample_report
from tests.scripts import load_script

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"


@pytest.fixture(scope="module")
def gate() -> ModuleType:
    return load_script(BENCHMARKS / "gate.py")


@pytest.fixture(scope="module")
def forks(gate: ModuleType) -> Any:
    return gate.read_forks((BENCHMARKS / "gate.toml").read_text(encoding="utf-8"))


def test_every_bug_names_a_cell_of_the_matrix_and_a_check(gate: ModuleType, forks: Any) -> None:
    for fork in forks.values():
        cells = expand(read_matrix(fork.matrix)).cells
        ids = [cell.id.rpartition("-")[0].replace(f"-{gate.STACK}", "") for cell in cells]
        assert [bug.id for bug in fork.bugs if not any(fnmatchcase(name, bug.cell) for name in ids)] == []
        assert {bug.check for bug in fork.bugs} <= {check.name for check in CHECKS}
        assert len({bug.folder for bug in fork.bugs}) == len(fork.bugs)
    assert len(forks["megatron-lm"].bugs) >= 10


def test_older_packages_replace_the_recipe_of_the_matrix(gate: ModuleType, forks: Any, tmp_path: Path) -> None:
    text = forks["megatron-lm"].matrix.read_text(encoding="utf-8")
    assert text.count(gate.RECIPE) == 1
    (tmp_path / "older.yaml").write_text(text.replace(gate.RECIPE, gate.OLDER.format(code="/code")))
    (stack,) = {cell.config.stack for cell in expand(read_matrix(tmp_path / "older.yaml")).cells}
    assert stack == gate.STACK


def test_every_cell_of_a_gate_runs(forks: Any) -> None:
    assert [fork.name for fork in forks.values() if expand(read_matrix(fork.matrix)).rejected] == []


def test_the_page_has_a_row_for_every_bug(gate: ModuleType, forks: Any) -> None:
    page = gate.PAGE.read_text(encoding="utf-8")
    for fork in forks.values():
        rows = page.partition(fork.mark)[2].partition("\n\n")[0].splitlines()[2:]
        assert [row.split(" | ")[0] for row in rows] == [f"| {fork.link(bug)}" for bug in fork.bugs]


def test_a_table_replaces_the_one_of_its_project(gate: ModuleType, forks: Any) -> None:
    one, other = forks["megatron-lm"], forks["nemo-rl"]
    page = f"a\n\n{one.mark}| old |\n\nb\n\n{other.mark}| kept |\n"
    assert gate.written(one, "| new |\n", page) == f"a\n\n{one.mark}| new |\n\nb\n\n{other.mark}| kept |\n"


def _report(outcome: Outcome, check: str = "params_present", message: str = "no packed params") -> Report:
    report = sample_report()
    finding = Finding(lane=Lane.METADATA, check=check, message=message)
    cell = replace(
        report.cells[0],
        id="tp2-sft-fork-0a",
        outcome=outcome,
        role="cell",
        findings=[finding] * (outcome is Outcome.FAIL),
    )
    return replace(report, cells=[cell])


def test_a_bug_counts_only_if_its_cell_fails_in_its_check(gate: ModuleType) -> None:
    bug = gate.Bug(id="#1", title="t", fix="a", cell="tp2-sft", check="params_present", says="no packed")
    green = _report(Outcome.PASS)
    assert gate.problems([bug], {"#1": _report(Outcome.FAIL), "main": green}) == []
    assert gate.problems([bug], {"#1": green, "main": green}) == [
        "#1: not found by params_present in tp2-sft; red: nothing"
    ]
    for other in (_report(Outcome.FAIL, check="ended"), _report(Outcome.FAIL, message="other")):
        (said,) = gate.problems([bug], {"#1": other, "main": green})
        assert said.startswith('#1: not found by params_present in tp2-sft; red: ["tp2-sft [')
    elsewhere = replace(bug, cell="tp4-*")
    assert "not found" in gate.problems([elsewhere], {"#1": _report(Outcome.FAIL), "main": green})[0]


def test_a_bug_of_an_old_commit_counts_only_if_the_fix_ends_it(gate: ModuleType) -> None:
    bug = gate.Bug(id="#1", title="t", fix="a", ref="a~1", cell="tp2-sft", check="params_present", says="no packed")
    found, green = {"#1": _report(Outcome.FAIL), "main": _report(Outcome.PASS)}, _report(Outcome.PASS)
    assert (bug.fixed.ref, bug.fixed.revert, bug.fixed.code) == ("a", (), "a")
    assert gate.problems([bug], found) == ["#1 fixed: not run"]
    assert gate.problems([bug], {**found, "#1 fixed": _report(Outcome.FAIL)}) == ["#1: found on a as well"]
    assert gate.problems([bug], {**found, "#1 fixed": green}) == []
    reverted = replace(bug, ref="b", revert=("a",))
    assert (reverted.code, reverted.fixed.ref, reverted.fixed.revert) == ("b without a", "b", ())
    assert replace(reverted, ref="").fixed is None


def test_main_must_be_green_and_everything_run(gate: ModuleType) -> None:
    assert gate.problems([], {"main": _report(Outcome.FAIL)}) == ["main: tp2-sft-fork-0a is FAIL"]
    assert gate.problems([], {"main": _report(Outcome.XPASS)}) == ["main: tp2-sft-fork-0a is XPASS"]
    assert gate.problems([], {}) == ["main: not run"]


def test_the_table_names_code_cell_and_check(gate: ModuleType, forks: Any) -> None:
    bug = gate.Bug(
        id="#1", title="wrong", fix="abc", revert=("abc",), cell="tp2-*", check="params_present", says="packed"
    )
    fork = replace(forks["megatron-lm"], bugs=(bug,))
    (row,) = gate.table(fork, {"#1": _report(Outcome.FAIL)}).splitlines()[2:]
    link = "[#1](https://github.com/NVIDIA/Megatron-LM/pull/1)"
    assert row == f"| {link} | wrong | main without abc | `tp2-sft` | `params_present` | none |"


def test_a_worktree_has_the_submodules_that_the_clone_has(gate: ModuleType, forks: Any, tmp_path: Path) -> None:
    clone = repository(tmp_path / "clone")
    (clone / "3rdparty").mkdir()
    inner = repository(clone / "3rdparty" / "Megatron-LM")
    bad, newest = (git(inner, "rev-parse", name) for name in ("old", "HEAD"))
    for path in ("3rdparty/Megatron-LM", "3rdparty/Other"):  # the other one is not checked out
        git(clone, "update-index", "--add", "--cacheinfo", f"160000,{bad},{path}")
    git(clone, "commit", "--quiet", "--message", "submodules")
    fork = replace(forks["megatron-lm"], main=git(clone, "rev-parse", "HEAD"))
    place = tmp_path / "code"
    with gate.worktree(gate.Bench(fork=fork, clone=clone, folder=tmp_path), place, gate.MAIN):
        assert git(place / "3rdparty" / "Megatron-LM", "rev-parse", "HEAD") == bad
        assert not [*(place / "3rdparty" / "Other").glob("*")]
    assert not place.exists()
    assert (git(inner, "rev-parse", "HEAD"), len(git(inner, "worktree", "list").splitlines())) == (newest, 1)


@pytest.mark.train
@needs_clone
def test_a_real_bug_is_found_in_a_worktree_of_main_without_its_fix(
    gate: ModuleType, forks: Any, tmp_path: Path
) -> None:
    """The smallest one: one cell of one rank, in the harness's loop."""
    fork = forks["megatron-lm"]
    (bug,) = [bug for bug in fork.bugs if bug.id == "#3158"]
    bench = gate.Bench(fork=fork, clone=Path(CLONE), folder=tmp_path)
    report = gate.run(bench, bug, ["--only", "tp1-pp1-cp1-sft-fork-????????"])
    assert [gate.plain_id(cell) for cell, _ in gate.found_by(bug, report)][:1] == ["tp1-pp1-cp1-sft"]
    assert not (tmp_path / "3158-code").exists()
