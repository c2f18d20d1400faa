from __future__ import annotations

from dataclasses import replace

import pytest

from harness.core.packing.arithmetic import PAD
from harness.core.run.records import FollowedSeen, OracleRecord
from harness.judge.checks.numerics import router_choice
from harness.judge.evidence.cell_evidence import CellEvidence
from tests.judge.parts import with_routers


def followed(shortfall: float, *, step: int = 0, document: int = 3) -> CellEvidence:
    """A cell whose oracle followed a choice of layer 2 in which rounding moves scores by 0.001."""
    evidence = with_routers(aux_loss="none", pp=2)
    control = evidence.control
    assert control is not None
    seen = FollowedSeen(
        step=step, layer=2, shortfall=shortfall, rounding=0.001, document=document, position=5, expert=1
    )
    record = replace(control.records[0], followed=[seen])
    evidence.oracle = OracleRecord(cell=evidence.cell.id, built=[], record=record)
    return evidence


@pytest.mark.parametrize(("step", "most"), [(0, 0.003), (1, 0.03)])
def test_rounding_may_decide_between_experts(step: int, most: float) -> None:
    assert router_choice.check(followed(most, step=step)) == []
    assert len(router_choice.check(followed(1.01 * most, step=step))) == 1


def test_a_choice_against_the_scores_names_layer_token_and_expert() -> None:
    (finding,) = router_choice.check(followed(0.2))
    assert finding.message == (
        "in step 0 layer 2 sends token 5 of document 3 to expert 1, whose score is 0.2 below that of an expert left "
        "out, by the oracle; rounding explains 0.003"
    )
    assert finding.where == {"stage": 1, "layer": 2, "step": 0, "expert": 1, "document": 3, "token": 5}


def test_wrong_gradients_before_a_step_explain_its_choices() -> None:
    evidence = followed(0.2, step=1)
    assert len(router_choice.check(evidence)) == 1
    for record in evidence.records.values():
        record.steps[0].grad_norm = 2 * (record.steps[0].grad_norm or 1.0)
    assert router_choice.check(evidence) == []


def test_padding_has_no_document() -> None:
    (finding,) = router_choice.check(followed(0.2, document=PAD))
    assert "layer 2 sends padding to expert 1," in finding.message and "document" not in finding.where


def test_without_an_oracle_nothing_was_followed() -> None:
    assert router_choice.check(with_routers(aux_loss="none")) == []
