from __future__ import annotations

from harness.judge import fault_classes
from harness.judge.evidence import CellEvidence
from tests.judge.simulator import at, config_of, evidence_for, place_of, the_only_finding


def _shift(evidence: CellEvidence, document: int, first_token: int, step: int = 0) -> None:
    """Raise the loss of a document's tokens from a position on."""
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


def test_a_first_document_that_differs_under_cp_is_no_leak() -> None:
    evidence = evidence_for(config_of("sft", cp=2))
    first = evidence.plan[0][0][1].batch.placed[0].document.index
    _shift(evidence, document=first, first_token=0)
    finding = the_only_finding(evidence, "document_loss")
    assert place_of(finding, "document", "micro_batch") == (first, 1)
    assert finding.fault_class == fault_classes.CP_LAYOUT


def test_a_later_step_names_no_token() -> None:
    evidence = evidence_for(config_of("sft"))
    _shift(evidence, document=3, first_token=0, step=1)
    assert place_of(the_only_finding(evidence, "document_loss"), "step", "document", "token") == (1, 3, None)
