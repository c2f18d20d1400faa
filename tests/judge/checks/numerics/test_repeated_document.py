from __future__ import annotations

from harness.judge.diagnosis import fault_classes
from tests.judge.simulator import config_of, evidence_for, judge, place_of


def test_a_copy_with_another_loss_needs_no_reference() -> None:
    evidence = evidence_for(config_of("sft"))
    control = evidence.control
    assert control is not None
    copies = {item.index: item.copy_of for item in evidence.cell.config.documents_of(0) if item.copy_of is not None}
    assert copies == {4: 2}
    control.records[0].steps[1].documents[4].loss_sum += 0.01
    [finding] = judge(control).findings
    assert finding.check == "repeated_document"
    assert place_of(finding, "document", "original", "step") == (4, 2, 1)


def test_a_copy_behind_other_documents_points_to_a_leak() -> None:
    evidence = evidence_for(config_of("sft"))
    evidence.records[0].steps[0].documents[4].loss_sum += 0.01
    findings = {finding.check: finding for finding in judge(evidence).findings}
    assert set(findings) == {"document_loss", "repeated_document"}
    assert findings["repeated_document"].fault_class == fault_classes.LEAK
