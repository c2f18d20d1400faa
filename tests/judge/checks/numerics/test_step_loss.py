from __future__ import annotations

from dataclasses import replace

import pytest

from harness.core.packing.options import PackingOptions
from harness.judge.checks import outputs
from harness.judge.evidence.cell_evidence import CellEvidence
from tests.judge.simulator import config_of, evidence_for, judge, place_of, the_only_finding


def test_a_step_loss_beyond_the_bound() -> None:
    evidence = evidence_for(config_of("sft", pp=2))
    for record in evidence.records.values():
        if record.steps[1].loss_sum is not None:
            record.steps[1].loss_sum *= 1 + 3e-5
    finding = the_only_finding(evidence, "step_loss")
    assert place_of(finding, "step", "stage", "rank") == (1, 1, 1)
    assert finding.measured == pytest.approx(3e-5, rel=1e-3)
    assert (finding.bound["value"], finding.bound["unit"]) == (1e-5, "relative")
    assert "fp32 layouts of megatron-core" in finding.message


def test_a_step_loss_within_the_bound_passes() -> None:
    evidence = evidence_for(config_of("sft", pp=2))
    for record in evidence.records.values():
        if record.steps[1].loss_sum is not None:
            record.steps[1].loss_sum *= 1 + 5e-6
    assert judge(evidence).findings == []


def test_a_loss_multiplied_by_the_context_parallel_size() -> None:
    evidence = evidence_for(config_of("sft", cp=2))
    for record in evidence.records.values():
        assert record.steps[0].loss_sum is not None
        record.steps[0].loss_sum *= 2
    assert the_only_finding(evidence, "step_loss").fault_class == "D normalisation: x cp"


def test_a_loss_that_was_not_recorded() -> None:
    evidence = evidence_for(config_of("sft"))
    evidence.records[0].steps[0].loss_sum = None
    [finding] = outputs.step_loss(evidence)
    assert "not recorded" in finding.message
    assert "record of rank 0: steps: step 0: loss_sum is missing" in judge(evidence).reason


def other_rows() -> CellEvidence:
    """A cell whose gradients depend on its rows, which differ from those of its control."""
    options = PackingOptions(calculate_per_token_loss=False)
    evidence = evidence_for(replace(config_of("sft"), options=options))
    assert not evidence.same_rows
    return evidence


@pytest.mark.parametrize(("step", "found"), [(0, 1), (1, 0)])
def test_cells_of_other_rows_are_compared_before_weights_move_and_not_after(step: int, found: int) -> None:
    evidence = other_rows()
    for record in evidence.records.values():
        seen = record.steps[step]
        assert seen.loss_sum is not None
        seen.loss_sum *= 1.01
        for loss in seen.documents.values():
            loss.loss_sum *= 1.01
    assert len(outputs.step_loss(evidence)) == found


def test_tensor_parallel_ranks_have_the_same_loss_in_a_canary_leg() -> None:
    evidence = evidence_for(config_of("sft", tp=2, canaries=("order",)))
    assert outputs.step_loss(evidence) == []
    evidence.records[1].legs[0].loss_sum *= 1.5
    (found,) = outputs.step_loss(evidence)
    assert found.message.startswith("loss sum of canary leg order on rank 1: ") and "on rank 0" in found.message
