"""Findings about multi-token prediction, compared whole."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from harness.core.packing.arithmetic import PAD
from harness.core.run.records import DocumentLoss
from harness.judge.checks import outputs
from harness.judge.evidence.cell_evidence import CellEvidence
from tests.judge.checks.whole import Cases
from tests.judge.parts import with_predictions

cases = Cases()


@cases(outputs.mtp_loss)
def tokens_beyond_the_end_of_two_documents() -> CellEvidence:
    evidence = with_predictions("reference", depths=2, pp=2)
    seen = next(seen for seen in evidence.records[1].mtp if seen.depth == 2)
    for document in list(seen.documents)[:2]:
        seen.documents[document].tokens += 1
    return evidence


@cases(outputs.mtp_loss)
def slots_outside_documents() -> CellEvidence:
    evidence = with_predictions()
    evidence.records[0].mtp[0].documents[PAD] = DocumentLoss(loss_sum=1.0, tokens=3)
    return evidence


@cases(outputs.mtp_loss)
def slots_outside_documents_and_a_document_of_the_only_step() -> CellEvidence:
    evidence = with_predictions()
    config = evidence.cell.config
    evidence.cell = replace(evidence.cell, config=replace(config, train=replace(config.train, steps=1)))
    evidence = replace(evidence)
    evidence.records[0].mtp[0].documents[PAD] = DocumentLoss(loss_sum=1.0, tokens=3)
    del evidence.records[0].mtp[0].documents[2]
    return evidence


@cases(outputs.mtp_loss)
def losses_of_two_documents_at_the_second_depth() -> CellEvidence:
    evidence = with_predictions(depths=2, dp=2)
    for record in evidence.records.values():
        for seen in record.mtp:
            for document in (1, 5):
                if seen.depth == 2 and document in seen.documents:
                    seen.documents[document].loss_sum *= 1.5
    return evidence


@cases(outputs.mtp_loss)
def losses_that_a_second_tensor_parallel_rank_repeats() -> CellEvidence:
    return with_predictions(depths=1, tp=2)


@cases(outputs.mtp_loss)
def predictions_of_a_first_step_that_is_not_whole() -> CellEvidence:
    evidence = with_predictions()
    evidence.records[0].mtp = []
    evidence.records[0].steps = evidence.records[0].steps[1:]
    return evidence


@cases(outputs.mtp_loss)
def predictions_of_four_ranks() -> CellEvidence:
    return with_predictions(depths=1, tp=2, dp=2)


@cases(outputs.mtp_loss)
def predictions_of_a_document_in_two_parts() -> CellEvidence:
    evidence = with_predictions()
    seen = evidence.records[0].mtp[0]
    for document, part in list(seen.documents.items()):
        half = DocumentLoss(loss_sum=part.loss_sum / 2, tokens=part.tokens // 2)
        seen.documents[document] = DocumentLoss(loss_sum=part.loss_sum / 2, tokens=part.tokens - half.tokens)
        evidence.records[0].mtp.append(replace(seen, documents={document: half}))
    return evidence


@cases(outputs.mtp_loss)
def a_document_that_the_control_did_not_predict() -> CellEvidence:
    evidence = with_predictions()
    assert evidence.control is not None
    for seen in evidence.control.records[0].mtp:
        seen.documents.pop(2, None)
    return evidence


@pytest.mark.parametrize("check", cases.of)
def test_a_numerics_check_states_what_is_wrong_and_where(check: str, golden: Callable[[str, str], None]) -> None:
    golden(f"findings/{check}.txt", cases.text(check))
