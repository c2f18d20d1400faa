from __future__ import annotations

import pytest

from harness.judge import fault_classes
from harness.judge.checks.grad_norm import check
from harness.judge.evidence import CellEvidence
from tests.judge.simulator import config_of, evidence_for, judge, place_of, the_only_finding


def _scale(evidence: CellEvidence, factor: float, step: int) -> None:
    for record in evidence.records.values():
        norm = record.steps[step].grad_norm
        assert norm is not None
        record.steps[step].grad_norm = norm * factor


@pytest.mark.parametrize(
    ("layout", "factor", "name"),
    [
        ({"cp": 2}, 2.0, "x cp"),
        ({"cp": 2}, 0.505, "x 1/cp"),
        ({"pp": 4}, 4.0, "x pp"),
        ({"tp": 2, "pp": 4}, 8.0, "x (tp pp)"),
        ({"tp": 2, "cp": 2}, 2.0, "x cp or tp"),
    ],
)
def test_the_ratio_is_named_after_a_factor_of_the_layout(layout: dict[str, int], factor: float, name: str) -> None:
    evidence = evidence_for(config_of("sft", **layout))
    _scale(evidence, factor, step=0)
    finding = the_only_finding(evidence, "grad_norm")
    assert finding.fault_class == f"D normalisation: {name}"
    assert f"the ratio is {name}" in finding.message
    assert place_of(finding, "step", "rank") == (0, 0)


def test_another_ratio_is_told_as_a_number() -> None:
    evidence = evidence_for(config_of("sft", cp=2))
    _scale(evidence, 1.1, step=1)
    finding = the_only_finding(evidence, "grad_norm")
    assert place_of(finding, "step") == (1,)
    assert "the ratio is 1.1" in finding.message
    assert finding.fault_class == fault_classes.GRADIENT_REDUCTION


def test_one_rank_that_differs_is_enough() -> None:
    evidence = evidence_for(config_of("sft", tp=2))
    evidence.records[1].steps[0].grad_norm = 2.01
    assert place_of(the_only_finding(evidence, "grad_norm"), "rank") == (1,)


def test_a_norm_that_nobody_recorded() -> None:
    evidence = evidence_for(config_of("sft", tp=2))
    for record in evidence.records.values():
        record.steps[1].grad_norm = None
    [finding] = check(evidence)
    assert place_of(finding, "step") == (1,)
    assert "record of rank 0: steps: step 1: grad_norm is missing" in judge(evidence).reason
