"""From outcomes to the verdict on a run and its exit code."""

from __future__ import annotations

import itertools

import pytest

from harness.core.outcomes import Outcome, exit_code, nothing_tested, verdict_of

JUDGED = {Outcome.PASS, Outcome.FLAKY, Outcome.XFAIL, Outcome.XPASS, Outcome.FAIL}


@pytest.mark.parametrize("outcomes", [*itertools.combinations(Outcome, 1), *itertools.combinations(Outcome, 2), ()])
def test_a_run_passes_only_if_a_cell_under_test_was_judged(outcomes: tuple[Outcome, ...]) -> None:
    untested = nothing_tested(outcomes)
    assert bool(untested) is not bool(JUDGED.intersection(outcomes))
    code = exit_code(verdict_of(dict.fromkeys(outcomes, 1), [untested] if untested else []))
    if Outcome.FAIL in outcomes:
        assert code == 1
    elif Outcome.ERROR in outcomes or not JUDGED.intersection(outcomes):
        assert code == 3
    else:
        assert code == 0


def test_the_message_counts_the_outcomes() -> None:
    found = nothing_tested([Outcome.REJECTED, Outcome.ERROR, Outcome.REJECTED, Outcome.REJECTED, Outcome.ERROR])
    assert found == "nothing was tested: no cell under test was judged (2 ERROR, 3 REJECTED)"
    assert nothing_tested([]) == "nothing was tested: no cell under test was judged (there are none)"


def test_a_problem_of_the_whole_run_is_undecided_unless_a_check_failed() -> None:
    assert verdict_of({Outcome.PASS: 3}, ["the plan was changed"]) == "error"
    assert verdict_of({Outcome.PASS: 3, Outcome.FAIL: 1}, ["the plan was changed"]) == "fail"


def test_a_run_whose_cells_all_fail_as_expected_passes() -> None:
    assert nothing_tested([Outcome.XFAIL]) == ""
    assert exit_code(verdict_of({Outcome.XFAIL: 1, Outcome.REJECTED: 2}, [])) == 0
