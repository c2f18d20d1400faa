"""Verdicts compared whole: outcome, lanes, findings, reason, and whether the records are usable."""

from __future__ import annotations

from dataclasses import replace

import pytest

from harness.core.outcomes import KnownFailure, Lane, LaneVerdict, Outcome, Rejection
from harness.core.run.records import Progress, RankEnding
from harness.core.run.run_plan import XFail
from harness.core.stack import ModuleHome, ReadyStack, Stack
from harness.judge.evidence.cell_evidence import CellEvidence
from harness.judge.verdict import CellVerdict, judge_cell
from tests.judge.checks.numerics.test_ended import cut_off
from tests.judge.simulator import config_of, drop_params, evidence_for, judge
from tests.judge.timed import slope, timed

SKIPPED = dict.fromkeys(Lane, LaneVerdict.SKIP)
KNOWN = XFail(pattern="*sft*", reason="known", expires="2026-06-30")


def lanes(metadata: str, numerics: str, throughput: str = "skip") -> dict[Lane, LaneVerdict]:
    return dict(zip(Lane, map(LaneVerdict, (metadata, numerics, throughput))))


def rejected(rule: str) -> CellEvidence:
    evidence = evidence_for(config_of("sft"))
    assert evidence.result is not None
    evidence.result.status, evidence.records = "rejected", {}
    evidence.result.rejection = Rejection(rule=rule, reason="no SFT data path")
    return evidence


def with_wrong_numbers(evidence: CellEvidence) -> None:
    evidence.records[0].steps[0].grad_norm = 9.0


def test_a_rejected_cell_has_no_usable_records() -> None:
    assert judge(rejected("stack.data_path")) == CellVerdict(
        Outcome.REJECTED, SKIPPED, [], "stack.data_path: no SFT data path", usable=False
    )


def test_a_rejection_without_a_rule_is_undecided() -> None:
    reason = "result.json: status is rejected, but no rule with a reason is named"
    assert judge(rejected("")) == CellVerdict(Outcome.ERROR, SKIPPED, [], reason, usable=False)


@pytest.mark.parametrize("allowed", ["", "older than --sft"])
def test_what_a_checkout_lacks_is_undecided_unless_the_matrix_allows_it(allowed: str) -> None:
    evidence = rejected("stack.data_path")
    assert evidence.result is not None
    evidence.result.status, evidence.result.reason = "error", "no SFT data path in /fork"
    evidence = replace(evidence, cell=replace(evidence.cell, may_reject=allowed))
    verdict = judge(evidence)
    if allowed:
        assert verdict == CellVerdict(Outcome.REJECTED, SKIPPED, [], "stack.data_path: no SFT data path", usable=False)
    else:
        assert verdict.outcome is Outcome.ERROR
        assert "no SFT data path in /fork" in verdict.reason


def test_an_error_for_another_reason_is_not_allowed_by_the_matrix() -> None:
    evidence = rejected("stack.data_path")
    assert evidence.result is not None
    evidence.result.status, evidence.result.rejection = "error", None
    evidence = replace(evidence, cell=replace(evidence.cell, may_reject="older than --sft"))
    assert judge(evidence).outcome is Outcome.ERROR


def test_code_from_another_folder_is_undecided_and_names_module_and_stack() -> None:
    evidence = evidence_for(config_of("sft"))
    home = ModuleHome(prefix="megatron.core", folders=("/requested",))
    evidence.stack = ReadyStack(requested=Stack(name="core019"), homes=(home,))
    verdict = judge(evidence)
    assert (verdict.outcome, verdict.usable, verdict.lanes) == (Outcome.ERROR, False, SKIPPED)
    assert "megatron.core" in verdict.reason and "stack core019" in verdict.reason


def test_a_clean_cell_passes_without_a_reason() -> None:
    assert judge(evidence_for(config_of("sft"))) == CellVerdict(Outcome.PASS, lanes("pass", "pass"), [], "")


def test_wrong_numbers_fail_without_a_reason() -> None:
    evidence = evidence_for(config_of("sft"))
    with_wrong_numbers(evidence)
    verdict = judge(evidence)
    assert (verdict.outcome, verdict.lanes, verdict.reason) == (Outcome.FAIL, lanes("pass", "fail"), "")


def test_wrong_metadata_fails_without_a_reason() -> None:
    evidence = evidence_for(config_of("sft"))
    drop_params(evidence.records[0])
    verdict = judge(evidence)
    assert (verdict.outcome, verdict.lanes, verdict.reason) == (Outcome.FAIL, lanes("fail", "pass"), "")


def test_missing_evidence_takes_the_passes_back_and_keeps_the_findings() -> None:
    evidence = evidence_for(config_of("sft"))
    evidence.records[0].environment = {}
    verdict = judge(evidence)
    assert verdict.outcome is Outcome.ERROR and "environment" in verdict.reason
    assert verdict.lanes == SKIPPED and verdict.findings == []


def test_missing_evidence_keeps_a_lane_that_failed() -> None:
    evidence = evidence_for(config_of("sft"))
    evidence.records[0].environment = {}
    with_wrong_numbers(evidence)
    verdict = judge(evidence)
    assert (verdict.outcome, verdict.lanes) == (Outcome.ERROR, lanes("skip", "fail"))


def test_a_rank_that_was_killed_in_the_metadata_leg_leaves_its_lane_undecided() -> None:
    evidence = evidence_for(config_of("sft", tp=2))
    assert evidence.result is not None
    cut_off(evidence.records[1], "running")
    evidence.records[1].progress = Progress(leg="metadata", step=0, micro_batch=1, phase="fetch")
    evidence.records[1].layers, evidence.records[1].legs = [], []
    evidence.result.status = "failed"
    evidence.result.ranks = [
        RankEnding(rank=0, ended="completed", exit_code=0),
        RankEnding(rank=1, ended="killed", exit_code=-9),
    ]
    verdict = judge(evidence)
    assert (verdict.outcome, verdict.lanes) == (Outcome.ERROR, SKIPPED)


def test_a_cell_that_is_only_slow_fails_without_a_reason() -> None:
    verdict = judge(timed(slope("rotary", 1.0) | slope("step", 10.0)))
    assert (verdict.outcome, verdict.lanes, verdict.reason) == (Outcome.FAIL, lanes("pass", "pass", "fail"), "")


@pytest.mark.parametrize(
    ("reason", "shown"), [("the node went down", "the node went down; rank 0"), ("", "rank 0"), (None, "rank 0")]
)
def test_an_infrastructure_failure_names_what_the_agent_said_and_what_the_ranks_show(
    reason: str | None, shown: str
) -> None:
    evidence = evidence_for(config_of("sft"))
    assert evidence.result is not None
    cut_off(evidence.records[0], "running")
    evidence.result.status, evidence.result.reason = "failed", reason or ""
    evidence.result.ranks = [RankEnding(rank=0, ended="killed", exit_code=-9)]
    if reason is None:
        evidence.result = None
    verdict = judge(evidence)
    assert (verdict.outcome, verdict.lanes) == (Outcome.ERROR, lanes("pass", "skip"))
    assert verdict.reason.startswith(shown)


def test_a_control_that_is_only_slow_can_be_compared_with() -> None:
    evidence = evidence_for(config_of("sft"))
    assert evidence.control is not None
    control = judge(evidence.control)
    slow = control._replace(outcome=Outcome.FAIL, lanes=lanes("pass", "pass", "fail"))
    assert judge_cell(evidence, today="2026-01-01", control=slow).outcome is Outcome.PASS
    for other in (lanes("pass", "pass"), lanes("skip", "pass", "fail"), lanes("pass", "fail", "fail")):
        wrong = control._replace(outcome=Outcome.FAIL, lanes=other)
        assert judge_cell(evidence, today="2026-01-01", control=wrong).outcome is Outcome.ERROR


def against_a_base(factor: float) -> CellEvidence:
    """A cell that takes `factor` times as long as its base."""
    evidence = timed({("turn", 0): 0.1 * factor}, jitter=0.0)
    evidence.base = timed({("turn", 0): 0.1}, jitter=0.0)
    return evidence


def test_a_cell_without_its_base_is_undecided_only_as_to_times() -> None:
    evidence = replace(against_a_base(1.0), base=None)
    reason = "the cell cannot be timed against its base: it is not in the run"
    untimed = CellVerdict(Outcome.ERROR, lanes("pass", "pass"), [], reason, untimed=True)
    assert judge(evidence) == untimed
    assert judge_cell(evidence_for(config_of("sft")), today="2026-01-01", control=untimed).outcome is Outcome.PASS
    with_wrong_numbers(evidence)
    verdict = judge(evidence)
    assert (verdict.outcome, verdict.untimed) == (Outcome.FAIL, False)


def test_the_times_of_a_base_that_cannot_be_compared_with_are_not_read() -> None:
    evidence = against_a_base(9.0)
    assert judge(evidence).lanes == lanes("pass", "pass", "fail")
    assert evidence.base is not None
    evidence.base.damaged = ["rank-00000.json cannot be read: it is empty"]
    reason = "the cell cannot be timed against its base: rank-00000.json cannot be read: it is empty"
    assert judge(evidence) == CellVerdict(Outcome.ERROR, lanes("pass", "pass"), [], reason, untimed=True)


def with_noise_of_the_control(**changes: str) -> CellEvidence:
    """A cell with two copies of a document whose losses differ, though by less than the noise of its control."""
    evidence = evidence_for(config_of("sft"))
    wide = replace(evidence.tolerances.repeated_document, value=0.5)
    evidence.tolerances = replace(evidence.tolerances, repeated_document=wide, **changes)
    evidence.records[0].steps[0].documents[4].loss_sum *= 1.1
    return evidence


def test_a_cell_whose_control_is_too_noisy_is_not_judged_by_tighter_bounds() -> None:
    verdict = judge(with_noise_of_the_control(too_noisy="the noise of the reference is too large"))
    reason = "the noise of the reference is too large"
    assert verdict == CellVerdict(Outcome.ERROR, lanes("pass", "skip"), [], reason)


def test_noise_that_a_failed_control_measured_excuses_nothing() -> None:
    evidence = with_noise_of_the_control()
    assert evidence.control is not None
    failed = judge(evidence.control)._replace(outcome=Outcome.FAIL)
    verdict = judge_cell(evidence, today="2026-01-01", control=failed)
    assert (verdict.outcome, [finding.check for finding in verdict.findings]) == (Outcome.FAIL, ["repeated_document"])


def test_the_control_is_judged_on_the_same_day() -> None:
    evidence = evidence_for(config_of("sft"))
    control = evidence.control
    assert control is not None
    control.cell = replace(control.cell, xfail=KNOWN)
    control.records[0].steps[0].documents[0].loss_sum = float("nan")
    assert "did not pass (XFAIL)" in judge_cell(evidence, today="2026-06-30").reason
    assert "did not pass (FAIL)" in judge_cell(evidence, today="2026-07-01").reason


def test_the_throughput_lane_needs_times_of_ranks_that_completed() -> None:
    seconds = {("packed", 0): 0.1, ("unpacked", 0): 0.1}
    assert judge(timed(seconds)) == CellVerdict(Outcome.PASS, lanes("pass", "pass", "pass"), [], "")
    evidence = timed(seconds)
    assert evidence.result is not None
    cut_off(evidence.records[0], "running")
    evidence.result.status, evidence.result.ranks = "failed", [RankEnding(rank=0, ended="killed", exit_code=-9)]
    assert judge(evidence).lanes == lanes("pass", "skip", "skip")


@pytest.mark.parametrize(
    ("changes", "day", "outcome", "known", "reason"),
    [
        ({}, "2026-06-30", Outcome.XFAIL, KnownFailure.EXPECTED, "known"),
        ({"link": "https://a"}, "2026-06-30", Outcome.XFAIL, KnownFailure.EXPECTED, "known (https://a)"),
        ({}, "2026-07-01", Outcome.FAIL, KnownFailure.EXPIRED, "the xfail entry expired on 2026-06-30: known"),
        (
            {"lanes": ("metadata", "throughput")},
            "2026-06-30",
            Outcome.FAIL,
            KnownFailure.ELSEWHERE,
            "fails, but not as the xfail entry states: numerics failed, not metadata and throughput; expected: known",
        ),
        (
            {"message_contains": ("stage 8", "stage 9")},
            "2026-06-30",
            Outcome.FAIL,
            KnownFailure.ELSEWHERE,
            "fails, but not as the xfail entry states: no finding contains 'stage 8' or 'stage 9'; expected: known",
        ),
    ],
)
def test_an_expected_failure_says_how_it_came_out(
    changes: dict[str, object], day: str, outcome: Outcome, known: KnownFailure, reason: str
) -> None:
    evidence = evidence_for(config_of("sft"), xfail=replace(KNOWN, **changes))  # type: ignore[arg-type]
    with_wrong_numbers(evidence)
    verdict = judge_cell(evidence, today=day)
    assert (verdict.outcome, verdict.known, verdict.reason) == (outcome, known, reason)


def test_two_lanes_that_failed_are_both_named() -> None:
    evidence = evidence_for(config_of("sft"), xfail=replace(KNOWN, lanes=("throughput",)))
    with_wrong_numbers(evidence)
    drop_params(evidence.records[0])
    assert "metadata and numerics failed, not throughput" in judge_cell(evidence, today="2026-01-01").reason


@pytest.mark.parametrize(("strict", "outcome"), [(False, Outcome.XPASS), (True, Outcome.FAIL)])
@pytest.mark.parametrize(("retried", "how"), [(False, "passed"), (True, "passed only on a retry")])
def test_a_pass_that_was_not_expected_is_known_as_one(strict: bool, outcome: Outcome, retried: bool, how: str) -> None:
    evidence = evidence_for(config_of("sft"), xfail=replace(KNOWN, strict=strict))
    evidence.retried = retried
    verdict = judge(evidence)
    reason = f"{how}, though the matrix expects a failure: known"
    assert (verdict.outcome, verdict.known, verdict.reason) == (outcome, KnownFailure.PASSES, reason)


@pytest.mark.parametrize("strict", [False, True])
def test_an_expected_failure_of_a_lane_that_was_not_judged_is_undecided(strict: bool) -> None:
    known = replace(KNOWN, lanes=("throughput",), strict=strict)
    evidence = evidence_for(config_of("sft"), xfail=known)
    assert judge(evidence) == CellVerdict(
        Outcome.ERROR,
        lanes("pass", "pass", "skip"),
        [],
        "expected to fail in throughput, which could not be judged: known",
        untimed=True,
    )
    evidence = timed({("packed", 0): 0.1, ("unpacked", 0): 0.1})
    evidence.cell = replace(evidence.cell, xfail=known)
    assert judge(evidence).outcome is (Outcome.FAIL if strict else Outcome.XPASS)
