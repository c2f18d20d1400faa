from __future__ import annotations

from harness.judge.diagnosis import fault_classes
from tests.judge.simulator import config_of, evidence_for, leg_of, place_of, the_only_finding


def test_the_first_copy_that_differs_is_named_with_its_place_in_the_pack() -> None:
    evidence = evidence_for(config_of("sft", canaries=("repetition",)))
    seen = leg_of(evidence.records[0], "repetition")
    for copy in (6, 7):
        seen.documents[copy].loss_sum *= 1.001
    finding = the_only_finding(evidence, "repetition")
    assert place_of(finding, "document", "original", "number", "micro_batch") == (6, 0, 6, 0)
    assert finding.where["documents"] == [6, 7]
    assert finding.fault_class == fault_classes.LEAK
    assert "number 6 in micro-batch 0 of replica 0, which has 8" in finding.message
