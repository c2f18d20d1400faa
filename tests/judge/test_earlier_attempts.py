"""What earlier attempts of a cell mean for its verdict: only those that do not blame the code allow FLAKY."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace

import pytest

from harness.core.outcomes import Lane, LaneVerdict, Outcome, Severity
from harness.core.run.records import CellResult, Failure, Progress, RankEnding, RankRecord
from harness.core.run.run_plan import XFail
from harness.judge.evidence.cell_evidence import CellEvidence
from harness.judge.verdict import CellVerdict, judge_cell
from tests.judge.simulator import TODAY, config_of, evidence_for, judge

Change = Callable[[CellEvidence], object]


def retried(*changes: Change, xfail: XFail | None = None, layout: str = "tp") -> CellEvidence:
    """A clean attempt of two ranks after one for each change, whose ranks were cut off in step 1."""
    evidence = evidence_for(config_of("reference", **{layout: 2}), xfail)
    evidence.retried = True
    for number, change in enumerate(changes, 1):
        attempt = replace(evidence, attempt=number, records=copy.deepcopy(evidence.records), earlier=())
        attempt.result = replace(
            result_of(evidence), attempt=number, status="error", reason="a node was lost", ranks=[]
        )
        for record in attempt.records.values():
            record.ended, record.progress = "running", Progress(leg="training", step=1, phase="forward")
            record.steps, record.legs = record.steps[:1], []
        change(attempt)
        for record in attempt.records.values():
            record.attempt = number
        evidence.earlier = [*evidence.earlier, attempt]
    evidence.attempt = len(changes) + 1
    for record in evidence.records.values():
        record.attempt = evidence.attempt
    evidence.result = replace(result_of(evidence), attempt=evidence.attempt)
    return evidence


def result_of(evidence: CellEvidence) -> CellResult:
    assert evidence.result is not None
    return evidence.result


def cut_off(attempt: CellEvidence) -> None:
    """Nothing more happened."""


def raised(attempt: CellEvidence, *, status: str = "failed") -> None:
    """An exception of the code on rank 1; the supervisor ended rank 0."""
    failure = Failure(type="AssertionError", message="wrong cu_seqlens", traceback="", time=101.0)
    failure.frames = ["megatron/core/transformer/attention.py:33 in forward"]
    attempt.records[1].ended, attempt.records[1].failure = "raised", failure
    attempt.records[0].ended = "killed"
    attempt.result = replace(result_of(attempt), status=status)
    result_of(attempt).ranks = [
        RankEnding(rank=0, ended="killed", exit_code=-15),
        RankEnding(rank=1, ended="raised", exit_code=1),
    ]


def without_result(attempt: CellEvidence) -> None:
    attempt.result = None


def without_records(attempt: CellEvidence) -> None:
    attempt.records = {}


def ended(attempt: CellEvidence) -> None:
    """Every rank completed before the node was lost."""
    records = evidence_for(attempt.cell.config).records
    attempt.records = {rank: replace(record) for rank, record in records.items()}
    attempt.result = None


def wrong_norms(attempt: CellEvidence) -> None:
    for record in attempt.records.values():
        record.steps[0].grad_norm = 4.0


def wrong(attempt: CellEvidence) -> None:
    """Every rank completed, with a wrong gradient norm."""
    ended(attempt)
    wrong_norms(attempt)


def both(*changes: Change) -> Change:
    def change(attempt: CellEvidence) -> None:
        for one in changes:
            one(attempt)

    return change


@pytest.mark.parametrize(
    "change",
    [
        cut_off,
        without_result,
        without_records,
        both(without_records, without_result),
        lambda attempt: attempt.records.pop(1),
        ended,
    ],
)
def test_a_pass_after_a_lost_attempt_is_flaky(change: Change) -> None:
    assert judge(retried(change)).outcome is Outcome.FLAKY
    assert judge(retried(change, cut_off)).outcome is Outcome.FLAKY


@pytest.mark.parametrize("more", [(), (cut_off,), (both(without_records, without_result),)])
def test_a_failure_of_the_code_counts_whatever_later_attempts_do(more: tuple[Change, ...]) -> None:
    verdict = judge(retried(raised, *more))
    assert verdict.outcome is Outcome.FAIL
    assert verdict.lanes[Lane.NUMERICS] is LaneVerdict.FAIL
    assert verdict.lanes[Lane.METADATA] is LaneVerdict.PASS
    assert verdict.findings[0].check == "ended"
    assert verdict.findings[0].message.startswith("attempt 1: rank 1 ")
    assert verdict.findings[0].where["attempt"] == 1
    assert verdict.reason == "attempt 1 failed; a later attempt does not undo that"


def test_a_failure_before_a_failure_leaves_the_findings_of_the_newest_attempt_alone() -> None:
    evidence = retried(raised)
    wrong_norms(evidence)
    assert judge(evidence) == judge(replace(evidence, earlier=()))


def test_the_verdict_after_a_failure_joins_the_lanes_and_findings_of_both_attempts() -> None:
    def give_needless_labels(attempt: CellEvidence) -> None:
        """To the first stage, which is only a warning."""
        attempt.records[0].batches[0].labels = attempt.records[1].batches[0].labels

    evidence = retried(both(raised, give_needless_labels), layout="pp")
    alone = judge(replace(evidence.earlier[0]))
    assert [finding.severity for finding in alone.findings] == [Severity.ERROR, Severity.WARNING]
    ended = alone.findings[0]
    found = replace(ended, message=f"attempt 1: {ended.message}", where={**ended.where, "attempt": 1})
    give_needless_labels(evidence)
    newest = judge(replace(evidence, earlier=()))
    assert [finding.severity for finding in newest.findings] == [Severity.WARNING]
    assert judge(evidence) == CellVerdict(
        Outcome.FAIL,
        {Lane.METADATA: LaneVerdict.PASS, Lane.NUMERICS: LaneVerdict.FAIL, Lane.THROUGHPUT: LaneVerdict.SKIP},
        [found, *newest.findings],
        "attempt 1 failed; a later attempt does not undo that",
    )


def test_a_failure_of_the_code_counts_if_the_next_attempt_is_undecided() -> None:
    evidence = retried(raised)
    evidence.records = {}
    verdict = judge(evidence)
    assert (verdict.outcome, verdict.usable) == (Outcome.FAIL, False)
    lanes = {Lane.METADATA: LaneVerdict.SKIP, Lane.NUMERICS: LaneVerdict.FAIL, Lane.THROUGHPUT: LaneVerdict.SKIP}
    assert verdict.lanes == lanes


def test_wrong_metadata_of_an_attempt_that_was_cut_off_counts() -> None:
    def change(attempt: CellEvidence) -> None:
        for record in attempt.records.values():
            for batch in record.batches:
                batch.params = None

    verdict = judge(retried(change))
    assert verdict.outcome is Outcome.FAIL
    assert verdict.findings[0].check == "params_present"


def test_a_failure_of_an_interrupted_attempt_counts() -> None:
    evidence = retried(raised)
    evidence.retried = False
    assert judge(evidence).outcome is Outcome.FAIL


def test_the_xfail_entry_applies_to_the_failure_of_an_earlier_attempt() -> None:
    known = XFail(pattern="*", reason="known", message_contains=("wrong cu_seqlens",))
    assert judge(retried(raised, xfail=known)).outcome is Outcome.XFAIL


def stale(attempt: CellEvidence) -> None:
    attempt.damaged = ["rank-00001.json cannot be read: it is empty"]


def of_another_rank(attempt: CellEvidence) -> None:
    attempt.records[1].cell = "other"


def of_another_attempt(attempt: CellEvidence) -> None:
    attempt.records = {}
    result_of(attempt).attempt = 3


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (stale, "rank-00001.json cannot be read"),
        (both(without_records, stale), "rank-00001.json cannot be read"),
        (of_another_rank, "record of rank 1: it belongs to cell other"),
        (of_another_attempt, "result.json: it belongs to attempt 3, but is in the folder of attempt 1"),
        (
            lambda attempt: raised(attempt, status="error"),
            "rank 1 (stage 0, tp 1, cp 0, dp 0) raised in the training leg",
        ),
        (wrong, "incomplete evidence: result.json is missing"),
    ],
)
def test_a_pass_is_undecided_if_an_earlier_attempt_may_have_failed(change: Change, why: str) -> None:
    verdict = judge(retried(change))
    assert verdict.outcome is Outcome.ERROR
    assert verdict.reason.startswith(f"attempt 1, which may have failed: {why}")
    assert LaneVerdict.PASS not in verdict.lanes.values()


def test_an_attempt_that_passed_raises_no_doubt() -> None:
    def passed(attempt: CellEvidence) -> None:
        ended(attempt)
        attempt.result = replace(result_of(evidence_for(attempt.cell.config)), attempt=1)

    evidence = retried(passed)
    assert judge(evidence.earlier[0]).outcome is Outcome.FLAKY
    assert judge(evidence).outcome is Outcome.FLAKY


def test_of_two_attempts_that_may_have_failed_the_first_is_named() -> None:
    reason = judge(retried(stale, of_another_rank)).reason
    assert reason == "attempt 1, which may have failed: rank-00001.json cannot be read: it is empty"


def test_a_doubt_about_an_attempt_does_not_change_an_undecided_verdict() -> None:
    evidence = retried(stale)
    evidence.records = {}
    assert judge(evidence) == judge(replace(evidence, earlier=()))


def test_earlier_attempts_are_judged_with_the_verdict_on_the_control_that_the_caller_has() -> None:
    def wrong_loss(attempt: CellEvidence) -> None:
        """All ranks completed, with losses that only the control shows to be wrong."""
        ended(attempt)
        attempt.result = replace(result_of(evidence_for(attempt.cell.config)), attempt=1)
        wrong_norms(attempt)

    evidence = retried(wrong_loss)
    assert evidence.control is not None
    assert judge(evidence).outcome is Outcome.FAIL
    failed = judge(evidence.control)._replace(outcome=Outcome.FAIL)
    assert judge_cell(evidence, today=TODAY, control=failed).outcome is Outcome.ERROR


def test_earlier_attempts_are_judged_on_the_same_day() -> None:
    evidence = retried(cut_off)
    assert evidence.control is not None
    known = XFail(pattern="*", reason="known", expires=TODAY)
    evidence.control.cell = replace(evidence.control.cell, xfail=known)
    evidence.control.records[0].steps[0].documents[0].loss_sum = float("nan")
    assert "did not pass (XFAIL)" in judge(evidence).reason


def test_a_doubt_about_an_attempt_does_not_hide_the_failure_of_another() -> None:
    assert judge(retried(stale, raised)).outcome is Outcome.FAIL


def test_an_exception_that_only_follows_from_a_lost_node_allows_flaky() -> None:
    def change(attempt: CellEvidence) -> None:
        raised(attempt, status="error")
        record: RankRecord = attempt.records[1]
        assert record.failure is not None
        record.failure.type, record.failure.message = "RuntimeError", "Connection closed by peer [10.0.0.1]:1234"

    assert judge(retried(change)).outcome is Outcome.FLAKY
