from __future__ import annotations

from harness.judge.diagnosis import fault_classes
from tests.judge.simulator import config_of, evidence_for, leg_of, place_of, the_only_finding


def test_a_document_whose_loss_depends_on_its_neighbours_is_named_with_both_positions() -> None:
    evidence = evidence_for(config_of("sft", canaries=("order",)))
    leg = evidence.legs["order"]
    victim = next(document for document, position in leg.positions.items() if position.number == 1)
    leg_of(evidence.records[0], "order").documents[victim].loss_sum *= 1.001
    finding = the_only_finding(evidence, "order")
    assert place_of(finding, "document", "number", "leg") == (victim, 1, "order")
    assert finding.fault_class == fault_classes.LEAK
    assert "reverse order" in finding.message and "number 1 in micro-batch" in finding.message
