"""Findings about losses, compared whole."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import pytest

from harness.core.packing.documents import DocumentsConfig
from harness.core.run.records import DocumentLoss
from harness.judge.checks import outputs
from harness.judge.evidence.cell_evidence import CellEvidence
from tests.judge.checks.whole import Cases, of, of_other_rows, shift, tight
from tests.judge.simulator import at, config_of, evidence_for

cases = Cases()


def raise_loss(evidence: CellEvidence, step: int, *documents: int, first_token: int = 0) -> None:
    for record in at(evidence, tp=0):
        seen = record.steps[step]
        for document in documents:
            if document in seen.documents:
                seen.documents[document].loss_sum *= 1.5
        for token in seen.tokens:
            token.loss += 0.1 if token.document in documents and token.position >= first_token else 0.0


@cases(outputs.document_loss)
def a_document_from_its_second_token_on() -> CellEvidence:
    evidence = of(pp=2, dp=2, steps=1)
    raise_loss(evidence, 0, 3, 5, first_token=1)
    return evidence


@cases(outputs.document_loss)
def a_document_of_a_later_step() -> CellEvidence:
    evidence = of(pp=2)
    raise_loss(evidence, 1, 3)
    return evidence


@cases(outputs.document_loss)
def a_document_behind_a_layer_that_is_off() -> CellEvidence:
    evidence = of()
    shift(evidence, 2, 3)
    raise_loss(evidence, 0, 3)
    return evidence


@cases(outputs.document_loss)
def all_losses_times_the_context_parallel_size() -> CellEvidence:
    evidence = of(cp=2)
    for record in evidence.records.values():
        for loss in record.steps[0].documents.values():
            loss.loss_sum *= 2
        for token in record.steps[0].tokens:
            token.loss *= 2
    return evidence


def per_pack(data_path: str) -> CellEvidence:
    evidence = of(data_path)
    for document, loss in evidence.records[0].steps[0].documents.items():
        home = evidence.document_positions[0][document]
        loss.loss_sum /= len(evidence.plan[0][home.dp][home.micro_batch].batch.placed)
    return evidence


@cases(outputs.document_loss)
def losses_over_the_documents_of_their_pack() -> CellEvidence:
    return per_pack("sft")


@cases(outputs.document_loss)
def a_document_that_has_no_loss_and_one_that_is_not_finite() -> CellEvidence:
    evidence = of()
    losses = evidence.records[0].steps[0].documents
    del losses[3]
    losses[1].loss_sum = math.nan
    return evidence


@cases(outputs.document_loss)
def a_document_that_the_plan_does_not_have() -> CellEvidence:
    evidence = of()
    evidence.records[0].steps[0].documents[99] = DocumentLoss(loss_sum=8.0, tokens=2)
    return evidence


@cases(outputs.document_loss)
def documents_of_other_rows_in_a_later_step() -> CellEvidence:
    evidence = of_other_rows()
    raise_loss(evidence, 1, 3)
    return evidence


@cases(outputs.document_loss)
def a_document_of_a_step_that_the_control_did_not_finish() -> CellEvidence:
    evidence = of()
    raise_loss(evidence, 1, 3)
    assert evidence.control is not None
    evidence.control.records[0].steps = evidence.control.records[0].steps[:1]
    return evidence


@cases(outputs.document_loss)
def a_second_step_after_one_that_the_control_did_not_finish() -> CellEvidence:
    evidence = of()
    raise_loss(evidence, 0, 2)
    raise_loss(evidence, 1, 3)
    assert evidence.control is not None
    evidence.control.records[0].steps = evidence.control.records[0].steps[1:]
    return evidence


@cases(outputs.repeated_document)
def a_copy_in_the_second_step() -> CellEvidence:
    evidence = of(pp=2)
    losses = evidence.records[1].steps[1].documents
    losses[2].loss_sum, losses[4].loss_sum = 8.0, 8.5
    return evidence


@cases(outputs.repeated_document)
def copies_that_are_absent_or_not_finite() -> CellEvidence:
    evidence = of()
    del evidence.records[0].steps[0].documents[4]
    evidence.records[0].steps[1].documents[2].loss_sum = math.nan
    return evidence


@cases(outputs.repeated_document)
def a_copy_whose_original_is_absent() -> CellEvidence:
    evidence = of()
    del evidence.records[0].steps[0].documents[2]
    evidence.records[0].steps[1].documents[4].loss_sum = math.inf
    return evidence


@cases(outputs.step_loss)
def losses_of_steps_times_the_context_parallel_size() -> CellEvidence:
    evidence = of(cp=2, pp=2)
    for record in at(evidence, pp=1):
        for seen in record.steps:
            seen.loss_sum *= 2  # type: ignore[operator]
    return evidence


@cases(outputs.step_loss)
def a_loss_of_the_second_rank_of_the_last_stage() -> CellEvidence:
    evidence = of(tp=2, pp=2)
    evidence.records[3].steps[1].loss_sum *= 1.37  # type: ignore[operator]
    return evidence


@cases(outputs.step_loss)
def a_loss_that_no_rank_recorded() -> CellEvidence:
    evidence = of(tp=2)
    for record in evidence.records.values():
        record.steps[1].loss_sum = None
    return evidence


@cases(outputs.step_loss)
def a_loss_that_one_rank_recorded() -> CellEvidence:
    evidence = of(tp=2)
    evidence.records[0].steps[0].loss_sum = None
    evidence.records[1].steps[1].loss_sum = math.nan
    return evidence


@cases(outputs.step_loss)
def losses_of_other_rows() -> CellEvidence:
    evidence = of_other_rows()
    evidence.records[0].steps[1].loss_sum *= 2  # type: ignore[operator]
    return evidence


@cases(outputs.step_loss)
def a_loss_where_that_of_the_control_is_zero() -> CellEvidence:
    evidence = of()
    assert evidence.control is not None
    evidence.control.records[0].steps[0].loss_sum = 0.0
    evidence.records[0].steps[0].loss_sum = 0.5
    return evidence


@cases(outputs.document_loss)
def a_document_of_a_later_step_whose_tokens_differ_in_the_first() -> CellEvidence:
    evidence = of()
    raise_loss(evidence, 1, 3)
    for token in evidence.records[0].steps[0].tokens:
        token.loss += 0.1 if token.document == 3 else 0.0
    return evidence


@cases(outputs.document_loss)
def unpacked_losses_that_are_all_halved() -> CellEvidence:
    evidence = of("unpacked", micro_batch_size=2)
    for loss in evidence.records[0].steps[0].documents.values():
        loss.loss_sum /= 2
    return evidence


@cases(outputs.document_loss)
def a_document_beyond_a_bound_of_the_first_step() -> CellEvidence:
    evidence = tight(of(), "document_loss")
    evidence.records[0].steps[0].documents[3].loss_sum *= 1 + 1e-6
    return evidence


@cases(outputs.repeated_document)
def a_copy_beyond_a_bound_of_the_first_step() -> CellEvidence:
    evidence = tight(of(), "repeated_document")
    evidence.records[0].steps[0].documents[4].loss_sum *= 1 + 1e-6
    return evidence


@cases(outputs.step_loss)
def a_loss_beyond_a_bound_of_the_first_step() -> CellEvidence:
    evidence = tight(of(), "step_loss")
    evidence.records[0].steps[0].loss_sum *= 1 + 1e-6  # type: ignore[operator]
    return evidence


def with_two_copies() -> CellEvidence:
    """A cell whose documents differ by step, and repeat twice: 2 repeats 0, and 6 repeats 4."""
    documents = DocumentsConfig(mode="file", lengths=(9, 7, 9, 5), repeat=(0, 2))
    return evidence_for(replace(config_of("sft"), documents=documents))


@cases(outputs.repeated_document)
def the_second_of_two_copies() -> CellEvidence:
    evidence = with_two_copies()
    losses = evidence.records[0].steps[0].documents
    del losses[2]
    losses[4].loss_sum, losses[6].loss_sum = 8.0, 8.5
    return evidence


@cases(outputs.step_loss)
def a_cell_without_a_control() -> CellEvidence:
    return replace(of(), control=None)


@cases(outputs.step_loss)
def losses_of_both_steps_on_one_rank() -> CellEvidence:
    evidence = of()
    for seen in evidence.records[0].steps:
        seen.loss_sum *= 1.37  # type: ignore[operator]
    return evidence


@cases(outputs.step_loss)
def a_loss_that_the_last_stage_did_not_record() -> CellEvidence:
    evidence = of(pp=2)
    evidence.records[1].steps[1].loss_sum = None
    return evidence


@pytest.mark.parametrize("check", cases.of)
def test_a_numerics_check_states_what_is_wrong_and_where(check: str, golden: Callable[[str, str], None]) -> None:
    golden(f"findings/{check}.txt", cases.text(check))
