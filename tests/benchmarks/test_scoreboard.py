"""The scoreboard: every cell that it names exists, and a fault counts only if its cells ended as they must."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from fnmatch import fnmatchcase
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from harness.core.outcomes import Lane, LaneVerdict, Outcome, verdict_of
from harness.core.run.report import Report
from harness.core.stack import CheckedOut, StackFacts, Version
from harness.inputs.matrix_file import read_matrix
from harness.matrix.expansion.expand import expand
from harness.reporting.render_json import render_json
from tests.sample_report import sample_report
from tests.scripts import load_script

OfCells = Callable[[dict[str, Outcome]], dict[str, Any]]
BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"


@pytest.fixture(scope="module")
def board() -> ModuleType:
    return load_script(BENCHMARKS / "scoreboard.py")


@pytest.fixture(scope="module")
def counts(board: ModuleType) -> ModuleType:
    """The module that `board` counts with."""
    return sys.modules[board.read_table.__module__]


@pytest.fixture(scope="module")
def table(board: ModuleType) -> Any:
    return board.read_table((BENCHMARKS / "scoreboard.toml").read_text(encoding="utf-8"))


def test_every_entry_names_cells_of_its_matrix(table: Any, root: Path) -> None:
    entries = [entry for fault in table.faults for entry in (*fault.bad, *fault.good)]
    ids: dict[str, list[str]] = {}
    for matrix in {entry.partition(": ")[0] for entry in entries}:
        assert matrix in table.matrices
        made = expand(read_matrix(root / "matrices" / f"{matrix}.yaml")).cells
        ids[matrix] = [cell.id.rpartition("-")[0] for cell in made]
    absent = []
    for entry in entries:
        matrix, _, pattern = entry.partition(": ")
        if not any(fnmatchcase(name, pattern) for name in ids[matrix]):
            absent.append(entry)
    assert not absent


def test_every_matrix_is_in_a_row_or_shows_bugs(table: Any) -> None:
    tested = {matrix for matrices in table.rows.values() for matrix in matrices}
    assert tested <= set(table.matrices)
    assert set(table.matrices) - tested <= {entry.partition(": ")[0] for fault in table.faults for entry in fault.bad}


def test_every_fault_has_a_list_a_unique_id_and_cells_or_a_reason(table: Any) -> None:
    names = [(fault.list, fault.id) for fault in table.faults]
    assert len(set(names)) == len(names)
    assert {name for name, _ in names} == set(table.lists)
    assert all(bool(fault.bad) != bool(fault.why_not) for fault in table.faults)


def _report(outcomes: dict[str, Outcome]) -> Report:
    """A report of the matrix `m` whose cells ended so, by id without hash; each has a control."""
    report = sample_report()
    cell = replace(report.cells[0], lanes=dict.fromkeys(Lane, LaneVerdict.PASS), findings=[])
    roles = {"cell": "0" * 8, "control": "1" * 8}
    made = ((f"{name}-{roles[role]}", outcome, role) for name, outcome in outcomes.items() for role in roles)
    cells = [
        replace(cell, id=name, outcome=outcome, role=role, reproduce=f"harness run m.yaml --only {name}")
        for name, outcome, role in made
    ]
    counts = Counter(cell.outcome for cell in cells)
    return replace(report, matrix="m", cells=cells, rejected=[], counts=counts, verdict=verdict_of(counts, []))


@pytest.fixture
def of_cells(counts: ModuleType) -> OfCells:
    return lambda outcomes: {"m": counts.kept_of(_report(outcomes))}


def test_what_is_kept_of_runs_is_read_back_and_a_newer_report_replaces_it(counts: ModuleType, tmp_path: Path) -> None:
    old = _report({"x-bad": Outcome.XFAIL, "clean": Outcome.PASS})
    kept = {"m": counts.kept_of(old), "n": counts.kept_of(old)}
    assert counts.read_kept(counts.written(kept)) == kept
    assert [cell.id for cell in kept["m"].cells] == ["x-bad", "clean"]
    newer = _report({"tp1-pp1-cp1-unpacked": Outcome.PASS})
    later = replace(newer, provenance=replace(old.provenance, started="2099-01-01T00:00:00+00:00"))
    earlier = replace(later, provenance=replace(old.provenance, started="1999-01-01T00:00:00+00:00"))
    for name, report in (("later", later), ("earlier", earlier)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "report.json").write_text(render_json(report))
    found = counts.newest(tmp_path, kept)
    assert ([cell.id for cell in found["m"].cells], found["n"]) == (["tp1-pp1-cp1-unpacked"], kept["n"])


def test_the_page_is_that_of_the_runs_kept_beside_it(
    board: ModuleType, counts: ModuleType, table: Any, root: Path
) -> None:
    runs = counts.read_kept((BENCHMARKS / "scoreboard_runs.json").read_text(encoding="utf-8"))
    assert (root / "docs" / "generated" / "scoreboard.md").read_text(encoding="utf-8") == board.page(table, runs)
    wrong = board.problems(table, runs)
    assert [one for one in wrong if "NOT RUN: " not in one and ": no run" not in one] == []


def test_a_fault_is_shown_if_its_cells_fail_as_known_and_those_without_it_pass(
    counts: ModuleType, of_cells: OfCells
) -> None:
    fault = counts.Fault(list="l", id="1", title="t", bad=("m: *-bad",), good=("m: *-good",))
    right = {"x-bad": Outcome.XFAIL, "y-bad": Outcome.XFAIL, "x-good": Outcome.PASS}
    assert counts.scored(fault, of_cells(right)).why_not == ""
    assert "y-bad is PASS" in counts.scored(fault, of_cells({**right, "y-bad": Outcome.PASS})).why_not
    assert "x-good is XFAIL" in counts.scored(fault, of_cells({**right, "x-good": Outcome.XFAIL})).why_not
    assert counts.scored(fault, {}).why_not == "NOT RUN: m: *-bad"
    assert counts.scored(fault, of_cells({"x-bad": Outcome.XFAIL})).why_not == "NOT RUN: m: *-good"


def test_problems_are_what_is_not_shown_not_listed_not_run_or_a_false_alarm(
    board: ModuleType, counts: ModuleType, of_cells: OfCells
) -> None:
    fault = counts.Fault(list="l", id="1", title="t", bad=("m: x-bad",))
    table = counts.Table(matrices=("m", "n"), lists={"l": "L"}, rows={}, heads={}, faults=(fault,))
    reports = of_cells({"x-bad": Outcome.PASS, "z-bad": Outcome.XFAIL, "clean": Outcome.FAIL})
    assert board.problems(table, reports) == [
        "l 1: NOT SHOWN: x-bad is PASS",
        "n: no run",
        "a known failure that no fault lists: m: z-bad",
        "trainer harness: 2 clean cells, fewer than 100",
        "false alarm: clean",
    ]


def test_what_one_change_fixes_counts_once(counts: ModuleType) -> None:
    fixes = ["Megatron-LM f89744b4f6", "Megatron-LM f89744b4f6", "Megatron-LM issue 7", "", "", "docs/reproducers/x.py"]
    faults = [counts.Fault(list="l", id=str(number), title="t", fix=fix) for number, fix in enumerate(fixes)]
    assert counts.distinct([counts.Score(fault=fault) for fault in faults]) == 5
    assert counts.distinct([counts.Score(fault=fault, why_not="no such model") for fault in faults]) == 0


def test_rows_that_the_same_cells_show_count_once(counts: ModuleType, table: Any) -> None:
    by_cells: dict[tuple[str, ...], list[Any]] = {}
    for fault in table.faults:
        if fault.bad:
            by_cells.setdefault(tuple(sorted(fault.bad)), []).append(counts.Score(fault=fault))
    assert [[score.fault.id for score in scores] for scores in by_cells.values() if counts.distinct(scores) > 1] == []


def test_the_page_counts_bugs_and_clean_cells(board: ModuleType, counts: ModuleType, of_cells: OfCells) -> None:
    shown = counts.Fault(list="l", id="1", title="shown", bad=("m: x-bad",))
    out = counts.Fault(list="l", id="2", title="not", why_not="no such model")
    gpu = counts.Fault(list="l", id="3", title="kernel", why_not="a kernel", gpu=True)
    table = counts.Table(matrices=("m",), lists={"l": "Some bugs"}, rows={}, heads={}, faults=(shown, out, gpu))
    cells = {"x-bad": Outcome.XFAIL, "clean": Outcome.PASS, "odd": Outcome.ERROR, "late": Outcome.NOT_RUN}
    page = board.page(table, of_cells(cells))
    assert "**1 distinct bugs of upstream are shown**, in 1 rows" in page
    assert "**1 false alarms in 2 clean cells**, by trainer: harness 2.\n" in page
    assert "| Some bugs | 1 | 3 |\n" in page
    assert "## Some bugs\n\n**1 of 3.** Of the others, 1 needs a GPU: 1 of the remaining 2.\n" in page
    assert "| 1 | shown |  | `m` |\n| 2 | not |  | no such model |\n" in page
    assert "| harness | 2 | 1 |" in page


def test_commits_reports_and_reproducers_are_links(board: ModuleType) -> None:
    home = "https://github.com/NVIDIA/Megatron-LM"
    assert board.linked("Megatron-LM dev 4bce841d24 and issue 12") == (
        f"Megatron-LM dev [4bce841d24]({home}/commit/4bce841d24) and [issue 12]({home}/issues/12)"
    )
    assert board.linked("none; docs/reproducers/x.py") == "none; [reproducer](../reproducers/x.py)"
    assert board.linked("router.py of core_v0.19.0") == "router.py of core_v0.19.0"


def test_a_cell_counts_for_the_release_whose_code_it_tests(counts: ModuleType) -> None:
    names = ("megatron-core", "megatron-bridge", "skyrl", "verl")
    packages = tuple(Version(name=name, version="1.2") for name in names)
    checkout = CheckedOut(project="megatron-lm", ref="", commit="0123456789abcdef", reverted=("f",), repository="")
    stacks = {"s": StackFacts(packages=packages), "c": StackFacts(packages=packages, checkouts=(checkout,))}
    provenance = replace(sample_report().provenance, packages={"megatron-core": "1.1"}, stacks=stacks)
    report = replace(sample_report(), provenance=provenance)
    tested = {
        "megatron-core 1.1": {"packing": "sft", "stack": "default"},
        "megatron-core 1.2": {"packing": "sft", "stack": "s", "model.peft": "none"},
        "megatron-bridge 1.2": {"packing": "reference", "stack": "s", "model.peft": "lora4"},
        "skyrl 1.2": {"packing": "skyrl", "stack": "s"},
        "verl 1.2": {"packing": "verl", "stack": "s"},
        "megatron-lm 0123456789 without a fix": {"packing": "sft", "stack": "c"},
    }
    assert {version: counts.version_of(axes, report) for version, axes in tested.items()} == {v: v for v in tested}
    assert counts.version_of({"packing": "bridge_long", "stack": "s"}, report) == "megatron-bridge 1.2"


def test_releases_are_told_from_other_commits(counts: ModuleType) -> None:
    versions = ["megatron-core 0.19.2", "megatron-lm 0123456789", "megatron-bridge 0123456789", "megatron-lm abc"]
    cells = [counts.Cell(id="x", outcome=Outcome.PASS, trainer="harness", version=version) for version in versions]
    run = counts.Run(id="r", commit="c", started="", cells=tuple(cells), rejected={"megatron-core 0.19.2": 2})
    heads = {"megatron-lm 0123456789": "megatron-lm core_v1"}
    table = counts.Table(matrices=("m", "n"), lists={}, rows={"packing": ("m", "n")}, heads=heads, faults=())
    assert counts.release_table(table, {"m": run, "n": run}) == [
        ["packing", "megatron-core 0.19.2", "2", "", "4"],
        ["packing", "megatron-lm core_v1", "2", "", ""],
    ]
