"""Findings about evaluations between steps, compared whole."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import pytest

from harness.core.run.records import DocumentLoss, EvaluationSeen
from harness.judge.checks import trainer
from harness.judge.checks.trainer import evaluations_of
from harness.judge.evidence.cell_evidence import CellEvidence
from tests.judge.checks.trainer.test_evaluation import EVERY, evaluated
from tests.judge.checks.whole import Cases, tight
from tests.judge.simulator import config_of, evidence_for

cases = Cases()


def seen(evidence: CellEvidence, number: int, rank: int = 0) -> EvaluationSeen:
    return evidence.records[rank].evaluations[number]


def of_tokens(**layout: int) -> CellEvidence:
    """A cell whose trainer reports the mean over tokens."""
    evidence = evaluated("bridge", **layout)
    for one in evaluations_of(evidence):
        assert one.loss_sum is not None
        for _, found in one.seen:
            found.reported = one.loss_sum / one.tokens
    return evidence


def of_one_token(trainer: str) -> CellEvidence:
    """A cell that evaluates a document of one token, and reports twice its loss."""
    train = replace(EVERY, global_batch=1)
    evidence = evidence_for(replace(config_of("sft"), trainer=trainer, train=train))
    for found in evidence.records[0].evaluations:
        assert found.loss_sum is not None and found.token_count == 1
        found.reported = 2 * found.loss_sum
    return evidence


@cases(trainer.evaluation)
def evaluations_that_did_not_take_place() -> CellEvidence:
    evidence = evaluated(tp=2, pp=2)
    evidence.records[1].evaluations.pop()
    evidence.records[3].evaluations.clear()
    return evidence


@cases(trainer.evaluation)
def evaluations_of_a_rank_that_did_not_complete() -> CellEvidence:
    evidence = evaluated(pp=2)
    evidence.records[0].evaluations.pop()
    evidence.records[0].ended = "raised"
    return evidence


@cases(trainer.evaluation)
def modules_in_evaluation_mode_in_a_step() -> CellEvidence:
    evidence = evaluated(tp=2, pp=2)
    evidence.records[3].steps[0].training = False
    evidence.records[1].steps[1].training = False
    return evidence


@cases(trainer.evaluation)
def modules_in_training_mode_in_evaluations() -> CellEvidence:
    evidence = evaluated(tp=2, pp=2)
    seen(evidence, 0, rank=2).training = True
    seen(evidence, 1, rank=1).training = True
    return evidence


@cases(trainer.evaluation)
def documents_that_were_not_evaluated() -> CellEvidence:
    evidence = evaluated("harness", pp=2)
    del seen(evidence, 1, rank=1).documents[4]
    del seen(evidence, 1, rank=1).documents[0]
    del seen(evidence, 2, rank=1).documents[1]
    return evidence


@cases(trainer.evaluation)
def a_masked_document_without_a_record() -> CellEvidence:
    evidence = evaluated("harness")
    assert seen(evidence, 0).documents[6].tokens == 0
    del seen(evidence, 0).documents[6]
    return evidence


@cases(trainer.evaluation)
def tokens_of_a_masked_document() -> CellEvidence:
    evidence = evaluated("harness")
    seen(evidence, 2).documents[6] = DocumentLoss(loss_sum=4.5, tokens=1)
    return evidence


@cases(trainer.evaluation)
def token_counts_on_two_ranks() -> CellEvidence:
    evidence = evaluated("harness", tp=2, pp=2)
    seen(evidence, 1, rank=3).token_count = 3
    seen(evidence, 2, rank=2).token_count = None
    return evidence


@cases(trainer.evaluation)
def losses_on_two_ranks() -> CellEvidence:
    evidence = evaluated("harness", tp=2, pp=2)
    for number, rank in ((1, 3), (2, 2)):
        loss = seen(evidence, number, rank).loss_sum
        assert loss is not None
        seen(evidence, number, rank).loss_sum = 1.5 * loss
    return evidence


@cases(trainer.evaluation)
def a_loss_that_was_not_recorded() -> CellEvidence:
    evidence = evaluated("harness", pp=2)
    seen(evidence, 1, rank=1).loss_sum = None
    return evidence


@cases(trainer.evaluation)
def a_loss_that_the_control_did_not_record() -> CellEvidence:
    evidence = evaluated("harness")
    assert evidence.control is not None
    seen(evidence.control, 0).loss_sum = None
    return evidence


@cases(trainer.evaluation)
def a_loss_beyond_a_bound_of_the_first_step() -> CellEvidence:
    evidence = tight(evaluated("harness"), "step_loss")
    loss = seen(evidence, 0).loss_sum
    assert loss is not None
    seen(evidence, 0).loss_sum = loss * (1 + 1e-6)
    return evidence


@cases(trainer.evaluation)
def reports_of_two_ranks() -> CellEvidence:
    evidence = evaluated(dp=2, pp=2)
    seen(evidence, 1, rank=3).reported = 1.0
    seen(evidence, 2, rank=2).reported = 2.0
    return evidence


@cases(trainer.evaluation)
def a_report_beyond_a_bound_of_the_first_step() -> CellEvidence:
    evidence = tight(evaluated(), "step_loss")
    reported = seen(evidence, 0).reported
    assert reported is not None
    seen(evidence, 0).reported = reported * (1 + 1e-6)
    return evidence


@cases(trainer.evaluation)
def losses_that_are_not_reported() -> CellEvidence:
    evidence = evaluated(pp=2)
    seen(evidence, 1, rank=1).reported = None
    return evidence


@cases(trainer.evaluation)
def right_means_over_tokens() -> CellEvidence:
    return of_tokens(cp=2)


@cases(trainer.evaluation)
def a_wrong_mean_over_tokens() -> CellEvidence:
    evidence = of_tokens(pp=2)
    seen(evidence, 0, rank=1).reported = 1.0
    return evidence


@cases(trainer.evaluation)
def a_mean_over_tokens_of_a_loss_that_was_not_recorded() -> CellEvidence:
    evidence = of_tokens()
    seen(evidence, 0).loss_sum = None
    return evidence


@cases(trainer.evaluation)
def a_mean_over_tokens_of_a_loss_of_zero() -> CellEvidence:
    evidence = of_tokens()
    assert evidence.control is not None
    seen(evidence, 0).loss_sum = seen(evidence.control, 0).loss_sum = 0.0
    return evidence


@cases(trainer.evaluation)
def a_wrong_mean_over_one_token() -> CellEvidence:
    return of_one_token("bridge")


@cases(trainer.evaluation)
def a_wrong_mean_over_a_micro_batch_of_one_token() -> CellEvidence:
    return of_one_token("megatron")


@cases(trainer.evaluation)
def numbers_that_are_not_finite() -> CellEvidence:
    evidence = evaluated(pp=2)
    seen(evidence, 0, rank=1).loss_sum = math.inf
    seen(evidence, 0, rank=1).reported = -math.inf
    return evidence


@cases(trainer.evaluation)
def a_finding_of_every_kind() -> CellEvidence:
    evidence = evaluated(pp=2)
    evidence.records[0].evaluations.pop()
    last = evidence.records[1]
    last.evaluations[0].training = True
    last.evaluations[0].token_count = 3
    last.evaluations[1].loss_sum = 3.0
    last.evaluations[2].reported = 3.0
    return evidence


@pytest.mark.parametrize("check", cases.of)
def test_a_check_of_evaluations_states_what_is_wrong_and_where(check: str, golden: Callable[[str, str], None]) -> None:
    golden(f"findings/{check}.txt", cases.text(check))
