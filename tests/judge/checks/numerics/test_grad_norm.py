from __future__ import annotations

from dataclasses import replace

import pytest

from harness.judge.checks.gradients import grad_norm
from harness.judge.evidence.cell_evidence import CellEvidence
from harness.judge.weight import weight_of
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


def of_other_rows(**layout: int) -> CellEvidence:
    """A cell that weights each micro-batch separately, and whose control packs other rows."""
    evidence = evidence_for(config_of("sft", **layout))
    options = replace(evidence.cell.config.options, calculate_per_token_loss=False)
    evidence.cell = replace(evidence.cell, config=replace(evidence.cell.config, options=options))
    assert not evidence.same_rows
    return evidence


@pytest.mark.parametrize("step", [0, 1])
def test_where_the_reference_has_other_rows_ranks_are_held_against_each_other(step: int) -> None:
    evidence = of_other_rows(tp=2)
    _scale(evidence, 1.1, step=step)
    assert grad_norm(evidence) == []
    norm = evidence.records[1].steps[step].grad_norm
    assert norm is not None
    evidence.records[1].steps[step].grad_norm = norm * 1.1
    (finding,) = grad_norm(evidence)
    assert place_of(finding, "step", "rank") == (step, 1)
    assert "the first rank's" in finding.message


def test_a_norm_that_no_rank_recorded() -> None:
    evidence = evidence_for(config_of("sft", tp=2))
    for record in evidence.records.values():
        record.steps[1].grad_norm = None
    [finding] = grad_norm(evidence)
    assert place_of(finding, "step") == (1,)
    assert "record of rank 0: steps: step 1: grad_norm is missing" in judge(evidence).reason


def test_the_report_says_what_is_not_compared_where_the_reference_has_other_rows() -> None:
    text = (
        "compared with nothing, since the control has other rows: gradients, gradient norm, first update, steps after "
        "the first"
    )
    assert weight_of(of_other_rows(tp=2)).text.endswith(f"; {text}")
    assert text not in weight_of(evidence_for(config_of("sft", tp=2))).text
