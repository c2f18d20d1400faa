"""How small an error would still have failed: what a report says is where checks begin to fail."""

from __future__ import annotations

import pytest

from harness.core.outcomes import Outcome
from harness.judge.evidence.cell_evidence import CellEvidence
from harness.judge.weight import weight_of
from tests.judge.parts import with_predictions
from tests.judge.simulator import config_of, judge, run_of


def with_losses_off(evidence: CellEvidence, factor: float) -> None:
    for record in evidence.records.values():
        for loss in record.steps[0].documents.values():
            loss.loss_sum *= 1 + factor
        for token in record.steps[0].tokens:
            token.loss *= 1 + factor
        record.steps[0].loss_sum *= 1 + factor


def with_gradients_off(evidence: CellEvidence, factor: float) -> None:
    for record in evidence.records.values():
        for seen in record.parameters:
            seen.gradient.norm_sq *= (1 + factor) ** 2
            seen.gradient.projections = [value * (1 + factor) for value in seen.gradient.projections]


CHANGES = {"document_loss": with_losses_off, "parameter_gradient": with_gradients_off}


@pytest.mark.parametrize("name", CHANGES)
@pytest.mark.parametrize(("share", "outcome"), [(0.9, Outcome.PASS), (1.1, Outcome.FAIL)])
def test_an_error_above_what_is_stated_fails_and_one_below_passes(name: str, share: float, outcome: Outcome) -> None:
    _, evidence = run_of([config_of("sft", tp=2)])
    cell = list(evidence.values())[1]
    bound = weight_of(cell).smallest_seen[name]
    CHANGES[name](cell, share * bound)
    assert judge(cell).outcome is outcome


def test_what_is_compared_with_nothing_has_no_smallest_error() -> None:
    seen = weight_of(with_predictions("sft", tp=2)).smallest_seen
    assert set(seen) == {"document_loss", "step_loss", "activation"}


def test_without_a_reference_nothing_is_stated() -> None:
    _, evidence = run_of([config_of("sft", tp=2)])
    control = next(iter(evidence.values()))
    assert weight_of(control).smallest_seen == {}
    assert weight_of(control).smallest_text == ""


def test_quantities_with_the_same_bound_stand_together() -> None:
    _, evidence = run_of([config_of("sft", tp=2)])
    text = weight_of(list(evidence.values())[1]).smallest_text
    assert text.startswith("relative errors above 1e-05 in document_loss, step_loss; 0.0001 in grad_norm, activation, ")


def test_what_upstream_hands_over_and_no_check_reads_is_listed_with_the_reason() -> None:
    _, evidence = run_of([config_of("sft", tp=2)])
    cell = list(evidence.values())[1]
    cell.records[1].not_read = ["attention_mask", "new_argument"]
    weight = weight_of(cell)
    assert weight.not_read == ["attention_mask", "new_argument"]
    assert weight.not_read_text == (
        "attention_mask (with a causal mask type kernels do not read it); new_argument (unknown to the harness)"
    )
