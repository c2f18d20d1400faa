from __future__ import annotations

from dataclasses import replace

import pytest

from harness.core.packing.options import PackingOptions
from harness.judge.checks.gradients import gradient_scale
from harness.judge.evidence.cell_evidence import CellEvidence
from tests.judge.simulator import config_of, evidence_for, judge, place_of, the_only_finding


def scaled(evidence: CellEvidence, factor: float, kind: str = "dense") -> CellEvidence:
    for record in evidence.records.values():
        for seen in record.gradient_scales:
            right = seen.dense
            assert right is not None
            setattr(seen, kind, right * factor)
    return evidence


@pytest.mark.parametrize(("factor", "name"), [(2.0, "x dp or"), (0.5, "x 1/dp or"), (144.0, "144")])
def test_gradients_that_are_not_divided_by_the_tokens_of_the_step(factor: float, name: str) -> None:
    finding = the_only_finding(scaled(evidence_for(config_of("sft", dp=2)), factor), "gradient_scale")
    assert finding.message.startswith("gradients on rank 0 (")
    assert f"; the ratio is {name}" in finding.message
    assert place_of(finding, "rank", "step", "chunk") == (0, 0, 0)


def test_gradients_of_experts_are_divided_apart() -> None:
    (finding,) = gradient_scale(scaled(evidence_for(config_of("sft", dp=2)), 144.0, "experts"))
    assert finding.message.startswith("gradients of experts on rank 0 (")


def test_without_a_loss_per_token_gradients_are_averaged() -> None:
    options = PackingOptions(calculate_per_token_loss=False)
    evidence = evidence_for(replace(config_of("reference", dp=2), options=options))
    assert gradient_scale(evidence) == []
    (finding,) = gradient_scale(scaled(evidence, 2.0))
    assert "the mean over replicas and context ranks" in finding.message


def test_the_rounding_of_bf16_is_no_factor() -> None:
    assert gradient_scale(scaled(evidence_for(config_of("sft")), 1 + 2.0**-9)) == []


def test_a_factor_that_was_not_recorded_leaves_the_cell_undecided() -> None:
    evidence = evidence_for(config_of("sft"))
    evidence.records[0].gradient_scales = []
    assert "gradient_scales: of chunks [], not [0]" in judge(evidence).reason
