from __future__ import annotations

from harness.judge.diagnosis import fault_classes
from tests.judge.simulator import at, config_of, evidence_for, leg_of, place_of, the_only_finding


def test_the_smallest_change_of_a_loss_is_found() -> None:
    evidence = evidence_for(config_of(tp=2, canaries=("padding",)))
    (record,) = at(evidence, tp=0)
    leg_of(record, "padding").documents[1].loss_sum *= 1 + 1e-15
    finding = the_only_finding(evidence, "padding")
    assert place_of(finding, "document", "micro_batch") == (1, 0)
    assert finding.fault_class == fault_classes.PADDING
