from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from harness.core.outcomes import Lane, LaneVerdict, Outcome, Rejection, Severity
from harness.core.run.records import Failure, Progress, RankEnding
from harness.core.run.run_plan import XFail
from harness.judge.diagnosis import fault_classes
from harness.judge.verdict import judge_cell
from tests.judge.checks.numerics.test_ended import IN_CODE, cut_off, waits
from tests.judge.simulator import at, config_of, drop_params, evidence_for, judge

KNOWN = XFail(pattern="*sft*", reason="no metadata on middle stages", link="https://example.org/4092")


def test_a_rejection_found_at_run_time() -> None:
    evidence = evidence_for(config_of("sft"))
    assert evidence.result is not None
    evidence.result.status, evidence.records = "rejected", {}
    evidence.result.rejection = Rejection(rule="stack.data_path", reason="megatron-core 0.16.1 has no SFT data path")
    verdict = judge(evidence)
    assert verdict.outcome is Outcome.REJECTED
    assert verdict.reason == "stack.data_path: megatron-core 0.16.1 has no SFT data path"
    assert set(verdict.lanes.values()) == {LaneVerdict.SKIP}


@pytest.mark.parametrize("data_path", ["sft", "reference"])
def test_without_steps_only_the_batches_are_judged(data_path: str) -> None:
    config = config_of(data_path, tp=2, canaries=())
    config = replace(config, train=replace(config.train, steps=0))
    verdict = judge(evidence_for(config))
    assert (verdict.outcome, verdict.reason) == (Outcome.PASS, "")
    assert verdict.lanes == {
        Lane.METADATA: LaneVerdict.PASS,
        Lane.NUMERICS: LaneVerdict.SKIP,
        Lane.THROUGHPUT: LaneVerdict.SKIP,
    }
    wrong = evidence_for(config)
    drop_params(wrong.records[1])
    assert judge(wrong).lanes[Lane.METADATA] is LaneVerdict.FAIL
    missing = evidence_for(config)
    missing.records[1].batches.pop()
    assert judge(missing).lanes[Lane.METADATA] is LaneVerdict.FAIL


def test_a_cell_without_records_or_result_is_undecided() -> None:
    evidence = evidence_for(config_of("sft"))
    evidence.records, evidence.result = {}, None
    verdict = judge(evidence)
    assert verdict.outcome is Outcome.ERROR
    assert verdict.reason == "no rank records: the cell has not run, or its agent died"


@pytest.mark.parametrize(
    ("exit_code", "how"),
    [
        (-9, "was killed from outside"),
        (None, "was terminated in the training leg, step 0, micro-batch 1, forward; cause unknown"),
    ],
)
def test_a_rank_killed_from_outside_is_infrastructure(exit_code: int | None, how: str) -> None:
    evidence = evidence_for(config_of("sft", tp=2))
    assert evidence.result is not None
    evidence.result.status = "failed"
    evidence.result.first_failure_rank = 0
    evidence.result.ranks = [
        RankEnding(rank=0, ended="raised"),
        RankEnding(rank=1, ended="killed", exit_code=exit_code),
    ]
    for record in evidence.records.values():
        cut_off(record, "running")
    # The survivor's exception is a consequence of the kill.
    evidence.records[0].ended = "raised"
    evidence.records[0].failure = Failure(type="RuntimeError", message="connection closed", traceback="", time=1.0)
    verdict = judge(evidence)
    assert verdict.outcome is Outcome.ERROR
    assert f"rank 1 (stage 0, tp 1, cp 0, dp 0) {how}" in verdict.reason
    assert verdict.lanes == {
        Lane.METADATA: LaneVerdict.PASS,
        Lane.NUMERICS: LaneVerdict.SKIP,
        Lane.THROUGHPUT: LaneVerdict.SKIP,
    }


def test_metadata_evidence_outranks_infrastructure() -> None:
    evidence = evidence_for(config_of("sft", pp=4))
    assert evidence.result is not None
    evidence.result.status, evidence.result.reason = "error", "the node went down"
    for record in evidence.records.values():
        cut_off(record, "running")
    for record in at(evidence, pp=1):
        for batch in record.batches:
            batch.params = None
    verdict = judge(evidence)
    assert verdict.outcome is Outcome.FAIL
    assert verdict.lanes[Lane.METADATA] is LaneVerdict.FAIL
    assert verdict.lanes[Lane.NUMERICS] is LaneVerdict.SKIP


def test_an_agent_error_without_metadata_evidence_is_undecided() -> None:
    evidence = evidence_for(config_of("sft", pp=2))
    assert evidence.result is not None
    evidence.result.status, evidence.result.reason = "error", "the node went down"
    evidence.records[1].steps[0].loss_sum = 1.0
    verdict = judge(evidence)
    assert (verdict.outcome, verdict.reason) == (Outcome.ERROR, "the node went down")


def test_a_failure_in_set_up_is_undecided() -> None:
    evidence = evidence_for(config_of("sft"))
    record = evidence.records[0]
    cut_off(record, "raised")
    record.progress, record.batches = Progress(), []
    record.failure = Failure(type="ImportError", message="no megatron", traceback="", time=1.0)
    verdict = judge(evidence)
    assert verdict.outcome is Outcome.ERROR
    assert "ImportError: no megatron" in verdict.reason


def test_a_model_that_cannot_be_built_is_undecided() -> None:
    evidence = evidence_for(config_of("sft"))
    record = evidence.records[0]
    cut_off(record, "raised")
    record.progress = Progress(leg="training")
    record.failure = Failure(type="ValueError", message="hidden size", traceback="", time=1.0)
    verdict = judge(evidence)
    assert (verdict.outcome, verdict.lanes[Lane.METADATA]) == (Outcome.ERROR, LaneVerdict.PASS)


def test_a_deadline_with_no_rank_in_a_collective_is_undecided() -> None:
    evidence = evidence_for(config_of("sft", tp=2))
    for record in evidence.records.values():
        cut_off(record, "running")
    for rank in evidence.records:
        waits(evidence, rank, None, IN_CODE)
    verdict = judge(evidence)
    assert verdict.outcome is Outcome.ERROR
    assert "no rank waiting in a collective" in verdict.reason


def test_a_failed_attempt_whose_ranks_all_completed_is_undecided() -> None:
    evidence = evidence_for(config_of("sft"))
    assert evidence.result is not None
    evidence.result.status, evidence.result.reason = "failed", "exit code 1 after the end"
    verdict = judge(evidence)
    assert verdict.outcome is Outcome.ERROR
    assert "exit code 1 after the end" in verdict.reason


def test_complete_records_without_a_result_file_are_undecided() -> None:
    evidence = evidence_for(config_of("sft"))
    evidence.result = None
    verdict = judge(evidence)
    assert verdict.outcome is Outcome.ERROR
    assert "result.json is missing" in verdict.reason


def test_records_that_cannot_be_trusted_are_undecided() -> None:
    evidence = evidence_for(config_of("sft", tp=2))
    evidence.records[1].cell = "other"
    verdict = judge(evidence)
    assert (verdict.outcome, verdict.reason) == (Outcome.ERROR, "record of rank 1: it belongs to cell other")
    assert verdict.findings == [] and not verdict.usable


def test_a_reference_that_did_not_pass_leaves_numerics_undecided() -> None:
    evidence = evidence_for(config_of("sft"))
    assert evidence.control is not None
    evidence.control.records = {}
    verdict = judge(evidence)
    assert verdict.outcome is Outcome.ERROR
    assert "did not pass (ERROR)" in verdict.reason
    assert verdict.lanes[Lane.METADATA] is LaneVerdict.PASS
    assert verdict.lanes[Lane.NUMERICS] is LaneVerdict.SKIP


def test_checks_that_need_no_reference_fail_without_one() -> None:
    evidence = evidence_for(config_of("sft"))
    evidence.control = None
    evidence.records[0].steps[0].documents[5].tokens = 1
    verdict = judge(evidence)
    assert verdict.outcome is Outcome.FAIL
    assert [finding.check for finding in verdict.findings] == ["token_count"]


def test_numbers_take_the_class_of_the_metadata_that_is_wrong() -> None:
    evidence = evidence_for(config_of("sft", pp=4))
    for record in at(evidence, pp=1):
        drop_params(record)
    for record in evidence.records.values():
        for activation in record.activations:
            if activation.layer >= 2:
                activation.documents[3].projections[0] += 1.0
    findings = judge(evidence).findings
    assert [finding.check for finding in findings] == ["params_present", "activations"]
    assert {finding.fault_class for finding in findings} == {fault_classes.MIDDLE_STAGES}


def test_warnings_come_last_and_fail_nothing() -> None:
    evidence = evidence_for(config_of("sft", pp=4))
    for record in at(evidence, pp=1):
        record.batches[0].tokens = at(evidence, pp=0)[0].batches[0].tokens
    evidence.records[0].steps[0].grad_norm = 9.0
    findings = judge(evidence).findings
    assert [(finding.check, finding.severity) for finding in findings] == [
        ("grad_norm", Severity.ERROR),
        ("tokens_placed", Severity.WARNING),
    ]


def test_xfail_excuses_a_failure_until_it_expires() -> None:
    for expires, outcome in (("", Outcome.XFAIL), ("2026-01-01", Outcome.XFAIL), ("2025-12-31", Outcome.FAIL)):
        entry = XFail(pattern=KNOWN.pattern, reason=KNOWN.reason, link=KNOWN.link, expires=expires)
        evidence = evidence_for(config_of("sft"), xfail=entry)
        evidence.records[0].steps[0].grad_norm = 9.0
        verdict = judge(evidence)
        assert verdict.outcome is outcome
        assert "no metadata on middle stages (https://example.org/4092)" in verdict.reason
        assert verdict.findings


@pytest.mark.parametrize(
    ("stated", "outcome", "reason"),
    [
        ({"lanes": ("numerics",)}, Outcome.XFAIL, "no metadata on middle stages"),
        ({"lanes": ("metadata", "numerics")}, Outcome.FAIL, "numerics failed, not metadata and numerics"),
        ({"lanes": ("throughput",)}, Outcome.FAIL, "numerics failed, not throughput"),
        ({"message_contains": ("grad", "norm")}, Outcome.XFAIL, "no metadata on middle stages"),
        ({"message_contains": ("norm", "stage 7")}, Outcome.FAIL, "no finding contains 'stage 7'"),
        ({"checks": ("grad_norm", "step_loss")}, Outcome.XFAIL, "no metadata on middle stages"),
        ({"checks": ("step_loss",)}, Outcome.FAIL, "grad_norm failed too, not only step_loss"),
        ({"checks": ("step_loss", "mtp_loss")}, Outcome.FAIL, "grad_norm failed too, not only step_loss and mtp_loss"),
    ],
)
def test_xfail_excuses_only_the_failure_that_it_states(stated: Any, outcome: Outcome, reason: str) -> None:
    evidence = evidence_for(config_of("sft"), xfail=replace(KNOWN, **stated))
    evidence.records[0].steps[0].grad_norm = 9.0
    verdict = judge(evidence)
    assert verdict.outcome is outcome
    assert reason in verdict.reason


def test_all_checks_that_xfail_does_not_name_are_listed() -> None:
    evidence = evidence_for(config_of("sft"), xfail=replace(KNOWN, checks=("step_loss",)))
    evidence.records[0].steps[0].grad_norm = 9.0
    assert evidence.records[0].steps[0].token_count is not None
    evidence.records[0].steps[0].token_count += 1
    assert "grad_norm and token_count failed too, not only step_loss" in judge(evidence).reason


def test_a_pass_is_a_failure_where_xfail_is_strict() -> None:
    verdict = judge(evidence_for(config_of("sft"), xfail=replace(KNOWN, strict=True)))
    assert verdict.outcome is Outcome.FAIL
    assert "passed, though the matrix expects a failure" in verdict.reason


def test_xfail_does_not_excuse_infrastructure_and_shows_a_pass() -> None:
    passing = judge(evidence_for(config_of("sft"), xfail=KNOWN))
    assert passing.outcome is Outcome.XPASS
    broken = evidence_for(config_of("sft"), xfail=KNOWN)
    broken.records = {}
    assert judge(broken).outcome is Outcome.ERROR


def test_a_pass_on_a_retry_is_flaky() -> None:
    evidence = evidence_for(config_of("sft"))
    evidence.retried = True
    assert judge(evidence).outcome is Outcome.FLAKY


def test_a_control_on_another_kind_of_device_cannot_be_compared_with() -> None:
    """`device: auto` on nodes with and without GPUs: other kernels round differently."""
    evidence = evidence_for(config_of("sft", cp=2))
    for record in evidence.records.values():
        gpu = {"device": "NVIDIA H200", "torch_device": f"cuda:{record.rank}", "backend": "nccl"}
        record.environment = record.environment | gpu
        record.cpu_stubs = []
        for params in record.packed_params:
            for form in params.forms.values():
                form.device = f"cuda:{record.rank}"
    verdict = judge(evidence)
    assert (verdict.outcome, verdict.lanes[Lane.NUMERICS]) == (Outcome.ERROR, LaneVerdict.SKIP)
    assert verdict.reason == (
        "numerics cannot be compared with its control, cell tp1-pp1-cp1-unpacked: it ran on cpu, this cell on cuda"
    )
    for record in evidence.records.values():
        record.steps[0].token_count = 3
    assert judge(replace(evidence)).outcome is Outcome.FAIL


def test_the_caller_may_know_the_verdict_on_the_reference() -> None:
    evidence = evidence_for(config_of("sft"))
    assert evidence.control is not None
    known = judge(evidence.control)._replace(outcome=Outcome.FAIL)
    verdict = judge_cell(evidence, today="2026-01-01", control=known)
    assert verdict.outcome is Outcome.ERROR


def test_a_wrong_gradient_comes_before_the_losses_that_it_changes() -> None:
    evidence = evidence_for(config_of("sft", cp=2))
    for record in evidence.records.values():
        record.steps[0].grad_norm = 4.0
        loss = record.steps[1].loss_sum
        assert loss is not None
        record.steps[1].loss_sum = loss * 1.01
    findings = judge(evidence).findings
    assert [(finding.check, finding.where["step"]) for finding in findings] == [("grad_norm", 0), ("step_loss", 1)]
    assert {finding.fault_class for finding in findings} == {"D normalisation: x cp"}
