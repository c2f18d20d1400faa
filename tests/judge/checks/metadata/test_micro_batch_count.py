from __future__ import annotations

from harness.judge.diagnosis import fault_classes
from tests.judge.simulator import at, config_of, evidence_for, place_of, the_only_finding


def test_a_rank_that_plans_another_number() -> None:
    evidence = evidence_for(config_of("sft", tp=2, pp=2))
    [record] = at(evidence, tp=1, pp=1)
    right = record.micro_batches[1]
    record.micro_batches[1] = right + 1
    finding = the_only_finding(evidence, "micro_batch_count")
    assert place_of(finding, "stage", "tp", "step") == (1, 1, 1)
    assert (finding.measured, finding.bound) == (right + 1, right)
    assert finding.fault_class == fault_classes.MICRO_BATCHES
