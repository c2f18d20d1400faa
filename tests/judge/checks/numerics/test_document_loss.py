from __future__ import annotations

from dataclasses import replace

import pytest

from harness.core.packing.options import PackingOptions
from harness.core.tolerances import Bound
from harness.judge.checks import outputs
from harness.judge.diagnosis import fault_classes
from harness.judge.evidence.cell_evidence import CellEvidence
from tests.judge.simulator import at, config_of, evidence_for, leg_of, place_of, the_only_finding


def _shift(evidence: CellEvidence, document: int, first_token: int, step: int = 0) -> None:
    """Raise the losses of a document's tokens from `first_token` on."""
    for record in at(evidence, tp=0):
        seen = record.steps[step]
        if document in seen.documents:
            seen.documents[document].loss_sum += 0.2
        for token in seen.tokens:
            if token.document == document and token.position >= first_token:
                token.loss += 0.1


def test_a_leak_names_document_and_first_token() -> None:
    evidence = evidence_for(config_of("sft"))
    _shift(evidence, document=3, first_token=1)
    finding = the_only_finding(evidence, "document_loss")
    assert place_of(finding, "step", "document", "token", "micro_batch") == (0, 3, 1, 0)
    assert finding.where["documents"] == [3]
    assert finding.fault_class == fault_classes.LEAK


def test_later_documents_that_differ_are_no_leak_where_canary_isolation_saw_none() -> None:
    evidence = evidence_for(config_of("sft", canaries=("isolation",)))
    (record,) = evidence.records.values()
    _shift(evidence, document=3, first_token=1)
    for name in ("isolation", "isolation-middle"):  # whatever the other documents hold
        leg_of(record, name).documents[3].loss_sum = record.steps[0].documents[3].loss_sum
    (finding,) = outputs.document_loss(evidence)
    assert finding.fault_class == fault_classes.POSITIONS
    leg_of(record, "isolation").documents[3].loss_sum += 0.2
    del evidence.__dict__["legs"]  # cached: read it again
    (finding,) = outputs.document_loss(evidence)
    assert finding.fault_class == fault_classes.LEAK


def test_a_first_document_that_differs_under_cp_is_no_leak() -> None:
    evidence = evidence_for(config_of("sft", cp=2))
    first = evidence.plan[0][0][1].batch.placed[0].document.index
    _shift(evidence, document=first, first_token=0)
    finding = the_only_finding(evidence, "document_loss")
    assert place_of(finding, "document", "micro_batch") == (first, 1)
    assert finding.fault_class == fault_classes.CP_LAYOUT


def test_the_first_token_after_another_document_is_at_a_boundary_behind_right_layers() -> None:
    evidence = evidence_for(config_of("sft", cp=2))
    second = evidence.plan[0][0][0].batch.placed[1].document.index
    _shift(evidence, document=second, first_token=0)
    finding = the_only_finding(evidence, "document_loss")
    assert finding.where["boundaries"][:2] == ["output layer", "document boundary"]
    assert place_of(finding, "token", "cp", "neighbour") == (0, 0, second - 1)
    assert f"right after document {second - 1}" in finding.message


def test_losses_that_are_all_multiplied_by_a_size_are_named() -> None:
    evidence = evidence_for(config_of("sft", cp=2))
    for record in evidence.records.values():
        for loss in record.steps[0].documents.values():
            loss.loss_sum *= 2
    assert the_only_finding(evidence, "document_loss").where["ratio"] == "x cp"


@pytest.mark.parametrize(("step", "found"), [(0, 1), (1, 0)])
def test_a_looser_bound_of_step_losses_holds_for_documents_once_weights_have_moved(step: int, found: int) -> None:
    evidence = evidence_for(config_of("sft"))
    loose = Bound(value=1e-2, origin="the matrix")
    evidence.tolerances = replace(evidence.tolerances, step_loss=loose)
    evidence.later = evidence.tolerances
    for record in evidence.records.values():
        record.steps[step].documents[3].loss_sum *= 1.001
    assert len(outputs.document_loss(evidence)) == found


@pytest.mark.parametrize(("step", "found"), [(0, 1), (1, 0)])
def test_documents_of_other_rows_are_compared_before_weights_move_and_not_after(step: int, found: int) -> None:
    options = PackingOptions(calculate_per_token_loss=False)
    evidence = evidence_for(replace(config_of("sft"), options=options))
    for record in evidence.records.values():
        record.steps[step].documents[3].loss_sum *= 1.01
    assert len(outputs.document_loss(evidence)) == found
