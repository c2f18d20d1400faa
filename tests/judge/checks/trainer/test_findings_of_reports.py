"""Findings about what trainers report, compared whole."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from harness.judge.checks import trainer
from harness.judge.evidence.cell_evidence import CellEvidence
from tests.judge.checks.whole import Cases, of, tight
from tests.judge.simulator import config_of, evidence_for

cases = Cases()


def trained(**layout: int) -> CellEvidence:
    return evidence_for(replace(config_of("sft", **layout), trainer="megatron"))


def report(evidence: CellEvidence, step: int, *ranks: int, **values: Any) -> None:
    for rank in ranks or evidence.records:
        reports = evidence.records[rank].reported
        reports[step] = replace(reports[step], **values)


@cases(trainer.reported)
def a_loss_times_the_context_parallel_size() -> CellEvidence:
    evidence = trained(cp=2, pp=2)
    seen = evidence.records[2].steps[1]
    assert seen.loss_sum is not None and seen.token_count is not None
    report(evidence, 1, 2, 3, loss=2 * seen.loss_sum / seen.token_count)
    return evidence


@cases(trainer.reported)
def every_metric_on_another_rank() -> CellEvidence:
    evidence = trained(tp=2, pp=2)
    report(evidence, 0, 1, grad_norm=2.1)
    report(evidence, 1, 2, learning_rate=0.002)
    report(evidence, 1, 3, loss_scale=2.0, skipped=1, consumed_samples=77)
    return evidence


@cases(trainer.reported)
def what_is_counted() -> CellEvidence:
    evidence = trained(pp=2, vpp=2)
    report(evidence, 0, packed_tokens=512.0, packed_squares=1.0)
    report(evidence, 1, 1, flops=2.0)
    return evidence


@cases(trainer.reported)
def metrics_that_are_not_reported() -> CellEvidence:
    evidence = trained(pp=2)
    report(evidence, 1, 1, loss=None, grad_norm=None, learning_rate=None)
    return evidence


@cases(trainer.reported)
def metrics_that_are_not_finite() -> CellEvidence:
    evidence = trained(pp=2)
    report(evidence, 1, 1, loss=math.nan, grad_norm=math.inf, learning_rate=math.nan)
    return evidence


@cases(trainer.reported)
def metrics_of_a_step_that_no_rank_computed() -> CellEvidence:
    evidence = trained()
    for record in evidence.records.values():
        record.reported.append(replace(record.reported[1], step=2, loss=1.0, grad_norm=1.0, skipped=2))
    return evidence


@cases(trainer.reported)
def what_the_harness_reports() -> CellEvidence:
    evidence = of()
    evidence.records[0].reported = trained().records[0].reported
    report(evidence, 0, loss_scale=2.0)
    return evidence


@cases(trainer.reported)
def metrics_beyond_a_bound_of_the_first_step() -> CellEvidence:
    evidence = tight(trained(), "step_loss", "grad_norm")
    loss = evidence.records[0].reported[0].loss
    assert loss is not None
    report(evidence, 0, loss=loss * (1 + 1e-6), grad_norm=2.0 + 2e-6)
    return evidence


@cases(trainer.reported)
def a_loss_sum_of_a_stage_that_computes_none() -> CellEvidence:
    evidence = trained(pp=2)
    evidence.records[0].steps[0].loss_sum = 1.0
    return evidence


@pytest.mark.parametrize("check", cases.of)
def test_a_numerics_check_states_what_is_wrong_and_where(check: str, golden: Callable[[str, str], None]) -> None:
    golden(f"findings/{check}.txt", cases.text(check))
