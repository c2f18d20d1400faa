"""Findings about the tokens that count, compared whole."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from harness.core.run.records import DocumentLoss
from harness.judge.checks import outputs
from harness.judge.evidence.cell_evidence import CellEvidence
from tests.judge.checks.whole import Cases, of
from tests.judge.simulator import at, leg_of

cases = Cases()


@cases(outputs.token_count)
def documents_and_a_step_that_count_too_few() -> CellEvidence:
    evidence = of(pp=2)
    seen = evidence.records[1].steps[1]
    seen.documents[5].tokens -= 1
    seen.documents[3].tokens -= 1
    seen.token_count -= 2  # type: ignore[operator]
    return evidence


@cases(outputs.token_count)
def a_cut_document_that_lost_more() -> CellEvidence:
    evidence = of(pp=2)
    evidence.records[1].steps[0].documents[7].tokens -= 3
    return evidence


@cases(outputs.token_count)
def a_cut_document_beside_a_whole_one() -> CellEvidence:
    evidence = of()
    for document in (7, 2):
        evidence.records[0].steps[0].documents[document].tokens -= 1
    return evidence


@cases(outputs.token_count)
def a_masked_document_that_counts_and_one_that_the_plan_does_not_have() -> CellEvidence:
    evidence = of()
    losses = evidence.records[0].steps[0].documents
    losses[6].tokens = 2
    losses[99] = DocumentLoss(loss_sum=1.0, tokens=1)
    return evidence


@cases(outputs.token_count)
def a_step_that_counts_every_context_parallel_rank() -> CellEvidence:
    evidence = of(cp=2, pp=2)
    for record in at(evidence, pp=1):
        record.steps[0].token_count *= 2  # type: ignore[operator]
    return evidence


@cases(outputs.token_count)
def a_count_that_no_rank_recorded() -> CellEvidence:
    evidence = of(tp=2)
    for record in evidence.records.values():
        record.steps[0].token_count = None
    return evidence


@cases(outputs.token_count)
def a_document_of_a_canary_leg() -> CellEvidence:
    evidence = of(pp=2, canaries=("truncation", "isolation"))
    leg_of(evidence.records[1], "isolation").documents[3].tokens -= 1
    return evidence


@cases(outputs.token_count)
def documents_without_a_loss_in_a_canary_leg() -> CellEvidence:
    evidence = of(canaries=("determinism",))
    documents = leg_of(evidence.records[0], "determinism").documents
    documents[6].tokens = 1
    del documents[7]
    return evidence


@cases(outputs.token_count)
def a_cut_document_of_a_canary_leg() -> CellEvidence:
    evidence = of(canaries=("determinism",))
    del leg_of(evidence.records[0], "determinism").documents[7]
    return evidence


@cases(outputs.token_count)
def a_document_without_a_loss() -> CellEvidence:
    evidence = of()
    del evidence.records[0].steps[0].documents[5]
    return evidence


@cases(outputs.token_count)
def documents_that_the_plan_does_not_have() -> CellEvidence:
    evidence = of()
    losses = evidence.records[0].steps[0].documents
    losses[98] = DocumentLoss(loss_sum=0.0, tokens=0)
    losses[99] = DocumentLoss(loss_sum=1.0, tokens=1)
    return evidence


@cases(outputs.token_count)
def a_document_that_every_context_parallel_rank_counts() -> CellEvidence:
    evidence = of(cp=2)
    for record in evidence.records.values():
        if 5 in record.steps[0].documents:
            record.steps[0].documents[5].tokens *= 2
    return evidence


@cases(outputs.token_count)
def a_count_that_the_last_stage_did_not_record() -> CellEvidence:
    evidence = of(pp=2)
    evidence.records[1].steps[0].token_count = None
    return evidence


@cases(outputs.token_count)
def a_wrong_count_of_the_second_rank() -> CellEvidence:
    evidence = of(tp=2)
    evidence.records[1].steps[0].token_count -= 1  # type: ignore[operator]
    return evidence


@cases(outputs.token_count)
def a_count_that_only_one_rank_recorded() -> CellEvidence:
    evidence = of(tp=2)
    evidence.records[1].steps[0].token_count = None
    return evidence


@pytest.mark.parametrize("check", cases.of)
def test_a_numerics_check_states_what_is_wrong_and_where(check: str, golden: Callable[[str, str], None]) -> None:
    golden(f"findings/{check}.txt", cases.text(check))
