from __future__ import annotations

from dataclasses import replace

import pytest

from harness.core.outcomes import Outcome
from harness.core.run.provenance import Provenance
from harness.core.run.report import Report, ReportRejected
from harness.reporting.compare.render import exit_code
from harness.reporting.compare.runs import CellChange, Comparison, Moved, compare_runs, with_commits
from tests.sample_report import lanes, sample_report
from tests.two_runs import NEW, OLD, changed, earlier_report, in_stack, later_report, with_loss


def cell(comparison: Comparison, name: str) -> CellChange:
    (found,) = (one for one in comparison.cells if one.id.startswith(name))
    return found


def test_a_run_with_itself_has_no_difference_at_all() -> None:
    report = sample_report()
    found = compare_runs(report, report)
    assert (found.verdict, found.notes) == ("no regression", [])
    # Cells that fail, are undecided or flaky in both runs are listed, and are no regression.
    assert found.counts == {"still failing": 2, "undecided": 1, "flaky": 1, "unchanged": 9}
    assert all(drift.equal for one in found.cells for drift in one.drifts)
    assert [stack.differences for stack in found.stacks] == [[]]


def test_a_cell_that_passed_and_fails_is_a_regression_with_its_new_findings_and_place() -> None:
    found = compare_runs(earlier_report(), later_report())
    broken = cell(found, "tp2-pp4-cp1-sft")
    assert found.verdict == "regression"
    assert found.cells[0] is broken
    assert (broken.before, broken.after, broken.regressions) == (Outcome.PASS, Outcome.FAIL, ["newly failing"])
    assert (broken.findings[0].check, broken.findings[0].where["stage"]) == ("params_present", 1)
    assert broken.lanes == ["metadata", "numerics"]
    assert cell(found, "tp2-pp2-cp1-sft").change == "fixed"
    assert cell(found, "tp1-pp2-cp1-vpp2").change == "new"


def test_a_ratio_of_times_beyond_the_bound_is_a_regression_and_noise_is_none() -> None:
    found = compare_runs(earlier_report(), later_report())
    slow, same = cell(found, "tp1-pp1-cp1-sft"), cell(found, "tp1-pp1-cp1-reference")
    assert [why.split(": ")[0] for why in slow.regressions] == [
        "whole step, 256 documents over 4",
        "timing leg, step, 256 documents",
    ]
    assert slow.regressions[0].endswith(": 3 times (2.74 to 3.28 in 7 rounds), bound 1.25: slower")
    assert same.regressions == []
    assert {item.ratio.verdict for item in same.times} == {"no difference"}


@pytest.mark.parametrize("after", [NEW, f"{OLD}+changes.1a2b3c4d"], ids=["another commit", "changed files"])
def test_one_id_at_two_commits_is_one_cell_and_the_commits_are_listed(after: str) -> None:
    before, later = in_stack(earlier_report(), OLD), in_stack(later_report(), after)
    found = compare_runs(before, later)
    broken = cell(found, "tp2-pp4-cp1-sft")
    assert (broken.matched, broken.regressions) == ("", ["newly failing"])
    (stack,) = [one for one in found.stacks if one.stack == "main"]
    (moved,) = [one for one in stack.differences if one.what == "megatron-lm"]
    assert (moved.before, moved.after) == (OLD, after)
    assert not [why for one in found.cells for why in one.regressions if why.startswith("in the same stack")]


def test_drift_is_a_regression_in_the_same_stack_only() -> None:
    before = sample_report()
    after = with_loss(before, "tp1-pp1-cp1-sft", lambda losses: [losses[0], *(one * 1.001 for one in losses[1:])])
    found = compare_runs(before, after)
    (why,) = cell(found, "tp1-pp1-cp1-sft").regressions
    assert why.startswith("in the same stack, loss: differs from step 1 on, by 0.001 at most (step ")
    moved = compare_runs(in_stack(before, OLD), in_stack(after, NEW))
    assert moved.verdict == "no regression"
    assert cell(moved, "tp1-pp1-cp1-sft").drifts[0].beyond


def test_a_control_drifts_beyond_the_bound_of_the_cells_compared_with_it() -> None:
    before = sample_report()
    after = with_loss(before, before.cells[0].id, lambda losses: [one * 1.001 for one in losses])
    assert len(compare_runs(before, after).regressions) == 1
    nearly = with_loss(before, before.cells[0].id, lambda losses: [one * (1 + 1e-7) for one in losses])
    assert compare_runs(before, nearly).verdict == "no regression"


def test_garbage_that_differs_between_two_failing_runs_is_no_regression() -> None:
    before = sample_report()
    after = with_loss(before, "tp1-pp2-cp2-reference", lambda losses: [9 * one for one in losses])
    assert compare_runs(before, after).verdict == "no regression"


def test_a_lane_that_passed_and_fails_is_a_regression_of_a_failing_cell() -> None:
    after = sample_report()
    broken = next(one for one in after.cells if one.id.startswith("tp1-pp2-cp2-reference"))
    other = changed(after, broken.id, lanes=lanes(), findings=[])
    (found,) = compare_runs(other, after).regressions
    assert found.regressions == ["numerics passed and fails"]


def test_moved_checkouts_are_listed_with_their_number_of_commits() -> None:
    before, after = in_stack(sample_report(), OLD, torch="2.9.0"), in_stack(sample_report(), NEW, torch="2.9.0")
    found = with_commits(compare_runs(before, after), {(OLD, NEW): Moved(added=312, removed=0)})
    (stack,) = found.stacks
    assert stack.stack == "main"
    assert [item.text for item in stack.differences] == ["megatron-lm 5e4fc931ba..d30e165203, 312 commits"]


def test_other_hardware_is_a_note_and_its_seconds_are_not_judged() -> None:
    before = earlier_report()
    before = replace(before, provenance=replace(before.provenance, cores=64))
    found = compare_runs(before, later_report())
    assert found.notes == ["different hardware, so seconds are not judged: cores 64 -> 2"]
    assert len(cell(found, "tp1-pp1-cp1-sft").regressions) == 1  # the ratio that each run measured by itself


def test_a_run_without_provenance_is_compared_too() -> None:
    report = sample_report()
    bare: Report = replace(report, provenance=Provenance(), timing={}, noise={}, rejected=[])
    found = compare_runs(bare, report)
    assert found.before.started == ""
    assert {stack.stack for stack in found.stacks} == {"default"}


@pytest.mark.parametrize("after", [Outcome.ERROR, Outcome.REJECTED, None])
def test_runs_without_a_cell_that_both_judged_are_undecided(after: Outcome | None) -> None:
    report = sample_report()
    if after is None:
        later = replace(report, cells=[], rejected=[])
    else:
        later = replace(report, cells=[replace(one, outcome=after) for one in report.cells])
    found = compare_runs(report, later)
    assert found.verdict == "undecided"
    assert exit_code(found) == 3
    assert found.notes[0] == "nothing was compared: no cell was judged in both runs"


def test_a_cell_that_passed_and_is_rejected_or_gone_is_a_regression() -> None:
    before = sample_report()
    passed = next(one for one in before.cells if one.outcome is Outcome.PASS and one.role == "cell")
    without = replace(before, cells=[one for one in before.cells if one.id != passed.id])
    rejected = ReportRejected(id=passed.id, axes=passed.axes, rule="stack.field", reason="no field", rejections=[])
    for after, why in (
        (without, "gone"),
        (replace(without, rejected=[*without.rejected, rejected]), "no longer run"),
    ):
        found = compare_runs(before, after)
        assert found.verdict == "regression"
        assert [(one.id, one.regressions) for one in found.regressions] == [(passed.id, [why])]


def test_cells_that_are_judged_no_more_are_lost_coverage_and_where_cells_were_chosen_no_regression() -> None:
    before = sample_report()
    gone, broken = (one.id for one in before.cells[:2])
    after = replace(before, cells=before.cells[1:], provenance=replace(before.provenance, chosen=["*sft*"]))
    after = changed(after, broken, outcome=Outcome.ERROR)
    found = compare_runs(before, after)
    assert sorted(found.lost) == sorted([gone, broken])
    assert found.notes[0].startswith("coverage lost: cells judged before but no longer: 1 ERROR, 1 gone (")
    assert found.verdict == "no regression"
    assert compare_runs(after, before).lost == []


def test_the_order_in_time_is_checked() -> None:
    assert not any("first is the later" in note for note in compare_runs(earlier_report(), later_report()).notes)
    swapped = compare_runs(later_report(), earlier_report())
    assert any("the run given first is the later one" in note for note in swapped.notes)
