"""From outcomes to the verdict on a run and its exit code."""

from __future__ import annotations

import itertools

import pytest

from harness.core.outcomes import Finding, KnownFailure, Lane, Outcome, exit_code, nothing_passed, verdict_of
from harness.core.serialization import dumps, from_jsonable

PASSED = {Outcome.PASS, Outcome.FLAKY, Outcome.XPASS}


@pytest.mark.parametrize("outcomes", [*itertools.combinations(Outcome, 1), *itertools.combinations(Outcome, 2), ()])
def test_a_run_passes_only_if_a_cell_under_test_did(outcomes: tuple[Outcome, ...]) -> None:
    problem = nothing_passed(outcomes)
    assert bool(problem) is not bool({*PASSED, Outcome.FAIL}.intersection(outcomes))
    code = exit_code(verdict_of(dict.fromkeys(outcomes, 1), [problem] if problem else []))
    if Outcome.FAIL in outcomes:
        assert code == 1
    elif {Outcome.ERROR, Outcome.NOT_RUN}.intersection(outcomes) or not PASSED.intersection(outcomes):
        assert code == 3
    else:
        assert code == 0


def test_the_message_counts_the_outcomes() -> None:
    found = nothing_passed([Outcome.REJECTED, Outcome.ERROR, Outcome.REJECTED, Outcome.REJECTED, Outcome.ERROR])
    assert found == "no cell under test passed (2 ERROR, 3 REJECTED)"
    assert nothing_passed([]) == "no cell under test passed (there are none)"


def test_a_problem_of_the_whole_run_is_undecided_unless_a_check_failed() -> None:
    assert verdict_of({Outcome.PASS: 3}, ["the plan was changed"]) == "error"
    assert verdict_of({Outcome.PASS: 3, Outcome.FAIL: 1}, ["the plan was changed"]) == "fail"


def test_a_run_whose_cells_all_fail_as_expected_is_undecided() -> None:
    problem = nothing_passed([Outcome.XFAIL])
    assert problem == "no cell under test passed (1 XFAIL)"
    assert exit_code(verdict_of({Outcome.XFAIL: 1, Outcome.REJECTED: 2}, [problem])) == 3


def test_members_print_and_format_as_their_values() -> None:
    assert (str(Outcome.PASS), f"{Outcome.PASS:<6}|") == ("PASS", "PASS  |")


def test_members_are_written_as_text_and_read_back() -> None:
    assert dumps(KnownFailure.EXPIRED) == '"expired"'
    assert from_jsonable(KnownFailure, "expired") is KnownFailure.EXPIRED
    assert from_jsonable(KnownFailure, "") is KnownFailure.NONE and not KnownFailure.NONE


def test_what_the_message_of_a_finding_says_of_its_place_is_not_said_again() -> None:
    said = {"stage": 1, "tp": 1, "rank": 3, "leg": "metadata", "micro_batch": 0, "chunk": 0, "places": 9}
    unsaid = {"cp": 1, "rank_of": 3, "chunk": 1, "ranks": [3], "odd(": {"a": "("}}
    message = "no params at stage 1, tp 1, cp 11 (rank 3), micro-batch 0, metadata leg; 9 places"
    finding = Finding(lane=Lane.METADATA, check="order", message=message, where=said | unsaid)
    assert finding.unsaid == unsaid
    assert finding.place.startswith("stage 1, tp 1, rank 3, leg metadata, micro-batch 0")
