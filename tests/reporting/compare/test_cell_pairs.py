from __future__ import annotations

from dataclasses import replace

import pytest

from harness.core.outcomes import Outcome
from harness.core.run.report import ChangeKind
from harness.reporting.compare.runs import change, outcome_of, pairs
from tests.sample_report import sample_report
from tests.two_runs import cell_of


def test_every_cell_of_either_run_is_in_one_pair() -> None:
    before, after = sample_report(), sample_report()
    before = replace(before, cells=before.cells[:-1])
    after = replace(after, cells=after.cells[1:])
    found = pairs(before, after)
    assert [pair.after.id for pair in found if pair.after] == [cell.id for cell in (*after.cells, *after.rejected)]
    assert [pair.before.id for pair in found if pair.after is None and pair.before] == [before.cells[0].id]
    assert [pair.after.id for pair in found if pair.before is None and pair.after] == [after.cells[-1].id]
    assert not any(pair.matched for pair in found)


def test_a_cell_of_another_configuration_is_matched_by_its_name() -> None:
    report = sample_report()
    cell = cell_of(report, "tp2-pp4-cp1-sft")
    other = replace(report, cells=[replace(cell, id="tp2-pp4-cp1-sft-00000000")])
    (found,) = (pair for pair in pairs(other, report) if pair.before and pair.after and pair.after.id == cell.id)
    assert found.matched == "by name: the configuration differs"


def test_a_cell_with_an_injected_fault_is_matched_by_its_name_without_it() -> None:
    before = sample_report()
    sound = before.cells[0]
    name, _, _ = sound.id.rpartition("-")
    broken = replace(sound, id=f"{name}-attention-ignores-documents-0123abcd", fault="attention-ignores-documents")
    other = replace(sound, id=f"{name}-mbs4-0123abce")  # so that axes decide nothing
    found = pairs(before, replace(before, cells=[broken, other, *before.cells[1:]]))[0]
    assert (found.before, found.after) == (sound, broken)
    assert found.matched == "by name: a fault was injected"


def test_a_cell_whose_stack_has_another_name_is_matched_by_its_axes() -> None:
    report = sample_report()
    cell = cell_of(report, "tp2-pp4-cp1-sft")
    old = replace(cell, id="tp2-pp4-cp1-sft-core-0.17-11111111", axes={**cell.axes, "stack": "core-0.17"})
    (found,) = pairs(replace(report, cells=[old], rejected=[]), replace(report, cells=[cell], rejected=[]))
    assert found.matched == "by axes: the stack has another name"


def test_two_that_fit_equally_well_are_not_matched() -> None:
    report = sample_report()
    cell = cell_of(report, "tp2-pp4-cp1-sft")
    old = [replace(cell, id=f"tp2-pp4-cp1-sft-{number}") for number in ("00000000", "11111111")]
    found = pairs(replace(report, cells=old, rejected=[]), replace(report, cells=[cell], rejected=[]))
    assert [pair.before is not None and pair.after is not None for pair in found] == [False] * 3


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        ("PASS", "FAIL", "newly failing"),
        ("XFAIL", "FAIL", "newly failing"),
        ("ERROR", "FAIL", "failing, not judged before"),
        ("REJECTED", "FAIL", "failing, not judged before"),
        ("FAIL", "FAIL", "still failing"),
        ("FAIL", "PASS", "fixed"),
        ("XFAIL", "XPASS", "fixed"),
        ("FAIL", "XFAIL", "known failure"),
        ("XFAIL", "XFAIL", "unchanged"),
        ("PASS", "ERROR", "undecided"),
        ("ERROR", "PASS", "unchanged"),
        ("PASS", "FLAKY", "flaky"),
        ("PASS", "REJECTED", "no longer run"),
        ("REJECTED", "REJECTED", "unchanged"),
        (None, "FAIL", "new"),
        ("PASS", None, "gone"),
    ],
)
def test_the_change_of_a_cell(before: str | None, after: str | None, expected: str) -> None:
    assert change(before and Outcome(before), after and Outcome(after)) == expected  # type: ignore[arg-type]


def test_every_pair_of_outcomes_has_a_name() -> None:
    every = [None, *Outcome]
    assert {change(one, other) for one in every for other in every} == set(ChangeKind)


def test_a_rejected_cell_has_an_outcome_too() -> None:
    assert outcome_of(sample_report().rejected[0]) is Outcome.REJECTED
