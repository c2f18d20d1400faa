from __future__ import annotations

from harness.core.run.tensor_records import ParameterSeen
from harness.judge.diagnosis import fault_classes
from tests.judge.simulator import at, config_of, evidence_for, place_of, the_only_finding


def _scale(seen: ParameterSeen, factor: float) -> None:
    seen.gradient.norm_sq *= factor**2
    seen.gradient.projections = [value * factor for value in seen.gradient.projections]


def test_a_replica_that_was_not_reduced() -> None:
    evidence = evidence_for(config_of("sft", tp=2, dp=2))
    [record] = at(evidence, tp=1, dp=1)
    _scale(record.parameters[1], 1.1)
    finding = the_only_finding(evidence, "replica_gradients")
    assert place_of(finding, "tp", "dp", "parameter") == (1, 1, record.parameters[1].name)
    assert finding.where["ranks"] == [3]
    assert finding.fault_class == fault_classes.GRADIENT_REDUCTION
