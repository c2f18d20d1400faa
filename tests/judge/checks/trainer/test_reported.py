from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from harness.core.outcomes import Outcome
from harness.judge.checks import trainer
from harness.judge.diagnosis import fault_classes
from harness.judge.evidence.cell_evidence import CellEvidence
from harness.judge.weight import weight_of
from tests.judge.simulator import config_of, evidence_for, judge, place_of, print_reports, the_only_finding


def trained(**layout: int) -> CellEvidence:
    """A cell of upstream's trainer whose reports are right."""
    return evidence_for(replace(config_of("sft", **layout), trainer="megatron"))


def report(evidence: CellEvidence, step: int, ranks: tuple[int, ...] = (), **values: Any) -> None:
    """Change what ranks, by default all, report of a step."""
    for rank, record in evidence.records.items():
        if not ranks or rank in ranks:
            record.reported[step] = replace(record.reported[step], **values)
            if record.reported[0].printed:
                print_reports(evidence.cell.config, record.reported)


def test_right_reports_pass() -> None:
    evidence = trained(tp=2, pp=2)
    assert judge(evidence).outcome is Outcome.PASS
    assert weight_of(evidence).legs == 1  # training; there is no metadata leg


def test_a_loss_that_is_reported_times_a_factor_of_the_layout_is_named() -> None:
    evidence = trained(cp=2)
    seen = evidence.records[1].steps[1]
    assert seen.loss_sum is not None and seen.token_count is not None
    report(evidence, 1, loss=2 * seen.loss_sum / seen.token_count)
    finding = the_only_finding(evidence, "reported")
    assert finding.fault_class == "D normalisation: x cp"
    assert place_of(finding, "step", "rank", "metric") == (1, 0, "loss")
    assert "reported loss of step 1 on rank 0" in finding.message and "the ratio is x cp" in finding.message


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ({"grad_norm": 2.1}, "reported gradient norm of step 0 on rank 0: 2.1, should be 2"),
        ({"learning_rate": 0.002}, "reported learning rate of step 0 on rank 0: 0.002, should be 0.001"),
        ({"loss_scale": 2.0}, "reported loss scale of step 0 on rank 0: 2, should be 1"),
        ({"skipped": 1}, "reported number of skipped steps of step 0 on rank 0: 1, should be 0"),
        ({"consumed_samples": 77}, "reported number of consumed samples of step 0 on rank 0: 77, should be 3"),
        ({"packed_tokens": 191.0}, "reported number of packed tokens of step 0 on rank 0: 191, should be 192"),
        ({"packed_squares": 0.0}, "reported sum of squared lengths of step 0 on rank 0: 0, should be "),
        ({"flops": 1.0}, "reported number of floating-point operations of step 0 on rank 0: 1, should be "),
    ],
)
def test_a_metric_that_is_wrong_while_training_is_right_is_a_finding(values: dict[str, Any], text: str) -> None:
    evidence = trained(tp=2)
    report(evidence, 0, **values)
    finding = the_only_finding(evidence, "reported")
    assert finding.message.startswith(text)
    counted = {"packed_tokens", "packed_squares", "flops"} & values.keys()
    assert finding.fault_class == (fault_classes.WORKLOAD if counted else fault_classes.REPORTED)


def test_a_report_that_is_not_a_number_is_not_finite() -> None:
    evidence = trained()
    report(evidence, 0, grad_norm=float("nan"))
    verdict = judge(evidence)
    assert verdict.outcome is Outcome.FAIL
    assert {finding.check for finding in verdict.findings} == {"finiteness"}


def test_a_step_that_is_not_reported_is_an_error() -> None:
    evidence = trained()
    del evidence.records[0].reported[1]
    assert "the trainer reported steps [0" in judge(evidence).reason


def test_the_harness_reports_nothing() -> None:
    evidence, other = evidence_for(config_of("sft")), trained()
    evidence.records[0].reported = other.records[0].reported
    assert "expected []" in judge(evidence).reason


def test_tokens_that_every_model_chunk_counts_are_named() -> None:
    evidence = trained(pp=2, vpp=2)
    for record in evidence.records.values():
        tokens = record.reported[0].packed_tokens
        assert tokens is not None
        record.reported[0].packed_tokens = 2 * tokens
    finding = the_only_finding(evidence, "reported")
    assert finding.fault_class == fault_classes.WORKLOAD
    assert "the ratio is x pp or vpp" in finding.message


def test_a_count_must_be_a_multiple_to_be_named_by_its_ratio() -> None:
    """Counts are exact, so one that is almost twice the right one is something else; a loss is rounded."""
    evidence = evidence_for(replace(config_of("sft", dp=2), trainer="megatron"))
    for record in evidence.records.values():
        told = record.reported[0]
        assert told.packed_tokens is not None and told.loss is not None
        told.packed_tokens, told.loss = 2 * told.packed_tokens + 1, 2.01 * told.loss
    found = {finding.where["metric"]: finding.where.get("ratio") for finding in trainer.reported(evidence)}
    assert found["number of packed tokens"] is None
    assert found["loss"] == "x dp or micro-batches"
