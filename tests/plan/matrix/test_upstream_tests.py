"""The section `upstream_tests` and its axis, from the file to the cells."""

from __future__ import annotations

from typing import Any

from harness.core.data_paths.own import NO_TESTS, UpstreamTests
from harness.plan.matrix.load import one_cell, resolved
from tests.plan.helpers import expand_axes, matrix_of, names, problems_of

TESTS: dict[str, Any] = {
    "packed": {"file": "tests/test_packed.py", "passed": 8},
    "config": {"file": "tests/test_config.py", "select": "packed or cp", "passed": 14, "skipped": 2},
}
AXES = {"packing": "upstream_tests", "upstream_tests": ["packed", "config"]}


def test_each_entry_is_a_cell_and_its_control_runs_none() -> None:
    made = expand_axes(AXES, upstream_tests=TESTS)
    assert names(made) == [f"tp1-pp1-cp1-upstream_tests-{name}" for name in TESTS]
    cells = [cell.config.upstream_tests for cell in made.cells if cell.role == "cell"]
    assert cells == [UpstreamTests(name=name, **value) for name, value in TESTS.items()]
    assert {cell.config.upstream_tests for cell in made.cells if cell.role == "control"} == {NO_TESTS}
    assert [cell.axes["upstream_tests"] for cell in made.cells if cell.role == "cell"] == list(TESTS)


def test_the_expected_counts_are_part_of_the_id() -> None:
    other = TESTS | {"packed": {"file": "tests/test_packed.py", "passed": 9}}
    first, second = (
        {
            cell.id
            for cell in expand_axes(AXES, upstream_tests=given).cells
            if cell.config.upstream_tests.name == "packed"
        }
        for given in (TESTS, other)
    )
    assert not first & second


def test_a_cell_is_rejected_without_tests_or_with_other_packing() -> None:
    made = expand_axes(
        {"packing": ["upstream_tests", "sft"], "upstream_tests": [None, "packed"]},
        upstream_tests={"packed": TESTS["packed"]},
    )
    reasons = {item.rejections[0].rule: item.rejections[0].reason for item in made.rejected}
    assert set(reasons) == {"upstream-tests.case"}
    assert len(made.rejected) == 2
    (spread,) = expand_axes(
        {"packing": "upstream_tests", "upstream_tests": "packed", "tp": [1, 2]},
        upstream_tests={"packed": TESTS["packed"]},
    ).rejected
    assert spread.rejections[0].rule == "upstream-tests.one-rank"


def test_names_of_tests_are_checked() -> None:
    unknown, unused = problems_of(
        matrix={"packing": "upstream_tests", "upstream_tests": "packd"}, upstream_tests={"packed": TESTS["packed"]}
    )
    assert unknown.message == "no such upstream_test"
    assert (unused.key, unused.message) == ("upstream_tests.packed", "no row of the matrix uses this upstream_test")
    (wrong,) = problems_of(matrix={"packing": "sft"}, upstream_tests=["packed"])
    assert wrong.message == "must be a mapping of names to tests"
    (lacking, *_) = problems_of(matrix=AXES, upstream_tests={**TESTS, "packed": {"passed": 8}})
    assert lacking.key == "upstream_tests.packed.file"


def test_a_resolved_matrix_and_that_of_one_cell_hold_the_entry() -> None:
    written = {name: {"select": "", "failed": 0, "skipped": 0} | value for name, value in TESTS.items()}
    matrix = matrix_of(matrix=AXES, upstream_tests=TESTS)
    assert resolved(matrix)["upstream_tests"] == written
    cell = next(cell for cell in expand_axes(AXES, upstream_tests=TESTS).cells if cell.config.upstream_tests.name)
    alone = one_cell(cell.config, name="one")
    assert alone["upstream_tests"] == {"packed": written["packed"]}
    assert alone["matrix"]["upstream_tests"] == "packed"
