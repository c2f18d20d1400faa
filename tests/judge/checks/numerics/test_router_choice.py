from __future__ import annotations

from dataclasses import replace

import pytest

from harness.core.packing.arithmetic import PAD
from harness.core.run.records import FollowedSeen, OracleRecord
from harness.features.experts import checks
from harness.features.experts.config import MoeConfig
from harness.judge.evidence.cell_evidence import CellEvidence
from tests.judge.parts import with_routers


def followed(
    shortfall: float, *, step: int = 0, document: int = 3, rounding: float = 0.001, dropped: bool = False
) -> CellEvidence:
    """A cell whose oracle followed a choice of layer 2 in which rounding moves scores by 0.001."""
    evidence = with_routers(aux_loss="none", pp=2)
    control = evidence.control
    assert control is not None
    seen = FollowedSeen(
        step=step,
        layer=2,
        shortfall=shortfall,
        rounding=rounding,
        document=document,
        position=5,
        expert=1,
        dropped=dropped,
    )
    record = replace(control.records[0], followed=[seen])
    evidence.oracle = OracleRecord(cell=evidence.cell.id, built=[], record=record)
    return evidence


@pytest.mark.parametrize(("step", "most"), [(0, 0.003), (1, 0.03)])
def test_rounding_may_decide_between_experts(step: int, most: float) -> None:
    assert checks.router_choice(followed(most, step=step)) == []
    assert len(checks.router_choice(followed(1.01 * most, step=step))) == 1


def test_a_choice_against_the_scores_names_layer_token_and_expert() -> None:
    (finding,) = checks.router_choice(followed(0.2))
    assert finding.message == (
        "in step 0 layer 2 sends token 5 of document 3 to expert 1, whose score is 0.2 below that of an expert left "
        "out, by the oracle; rounding explains 0.003"
    )
    assert finding.where == {"stage": 1, "layer": 2, "step": 0, "expert": 1, "document": 3, "token": 5}


def test_a_slot_that_is_dropped_before_lighter_ones_is_named() -> None:
    assert checks.router_choice(followed(0.003, dropped=True)) == []
    (finding,) = checks.router_choice(followed(0.2, dropped=True))
    assert finding.message == (
        "in step 0 layer 2 drops token 5 of document 3 from expert 1, though its weight is 0.2 above that of a slot "
        "that the expert takes, by the oracle; rounding explains 0.003"
    )


def test_by_position_nothing_is_rounded() -> None:
    evidence = followed(1.0, rounding=0.0, dropped=True)
    moe = replace(MoeConfig(), capacity_factor=1.0, drop_policy="position")
    model = replace(evidence.cell.config.model, moe=moe)
    evidence.cell = replace(evidence.cell, config=replace(evidence.cell.config, model=model))
    (finding,) = checks.router_choice(evidence)
    assert finding.message == (
        "in step 0 layer 2 drops token 5 of document 3 from expert 1, though it comes 1 slots before one that the "
        "expert takes"
    )


def test_wrong_gradients_before_a_step_explain_its_choices() -> None:
    evidence = followed(0.2, step=1)
    assert len(checks.router_choice(evidence)) == 1
    for record in evidence.records.values():
        record.steps[0].grad_norm = 2 * (record.steps[0].grad_norm or 1.0)
    assert checks.router_choice(evidence) == []


def test_padding_has_no_document() -> None:
    (finding,) = checks.router_choice(followed(0.2, document=PAD))
    assert "layer 2 sends padding to expert 1," in finding.message and "document" not in finding.where


def test_without_an_oracle_nothing_was_followed() -> None:
    assert checks.router_choice(with_routers(aux_loss="none")) == []
