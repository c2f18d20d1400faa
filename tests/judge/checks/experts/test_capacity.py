from __future__ import annotations

from dataclasses import replace

import pytest

from harness.core.run.records import ChoiceSeen, OracleRecord, RouterSeen
from harness.features.experts import checks
from harness.features.experts.checks import own_kept
from harness.features.experts.config import MoeConfig
from harness.judge.evidence.cell_evidence import CellEvidence
from tests.judge.parts import share, with_routers

LIMITED = MoeConfig(capacity_factor=1.0)


def limited(moe: MoeConfig = LIMITED, **layout: int) -> CellEvidence:
    """A cell whose ranks recorded what their experts take, but no choices, as the oracle does not model it."""
    evidence = with_routers(aux_loss="none", **layout)
    model = replace(evidence.cell.config.model, moe=moe)
    evidence.cell = replace(evidence.cell, config=replace(evidence.cell.config, model=model))
    for record in evidence.records.values():
        for seen in record.routers:
            seen.kept = own_kept(moe, seen)
        record.choices = []
    evidence.oracle = None
    return evidence


def chosen(taken: list[list[int]], moe: MoeConfig = LIMITED, *, step: int = 0) -> CellEvidence:
    """A cell in which layer 2 of rank 0 had three slots, in a step: ceil(3 x 2 / 4) = 2 fit of three for expert 0."""
    evidence = limited(moe)
    experts = [[0, 1], [0, 2], [0, 3]]
    seen = ChoiceSeen(step=step, layer=2, micro_batch=1, experts=experts, taken=taken)
    evidence.records[0].choices = [seen]
    evidence.oracle = OracleRecord(cell=evidence.cell.id, built=[], record=evidence.records[0])
    return evidence


@pytest.mark.parametrize("moe", [LIMITED, replace(LIMITED, pad_to_capacity=True), replace(LIMITED, capacity_factor=4)])
def test_experts_that_take_what_fits_give_no_finding(moe: MoeConfig) -> None:
    assert checks.capacity(limited(moe, dp=2)) == []


@pytest.mark.parametrize(
    ("moe", "kept"),
    [
        # Of 7 tokens 5 choose experts 0 and 1, 2 choose 2 and 3: 7 x 2 / 4 = 3.5 fit.
        (LIMITED, [4, 4, 2, 2]),
        (replace(LIMITED, capacity_factor=0.5), [2, 2, 2, 2]),
        (replace(LIMITED, pad_to_capacity=True), [4, 4, 4, 4]),
        (replace(LIMITED, capacity_factor=2.0), [5, 5, 2, 2]),
        (replace(LIMITED, capacity_factor=9.0, pad_to_capacity=True), [7, 7, 7, 7]),
    ],
)
def test_an_expert_takes_no_more_than_its_capacity(moe: MoeConfig, kept: list[int]) -> None:
    assert own_kept(moe, RouterSeen(layer=1, micro_batch=0, real=[share(5, 0)], padding=[share(2, 2)])) == kept


def test_an_expert_that_takes_another_number_is_named_with_its_rank() -> None:
    evidence = limited(dp=2)
    kept = evidence.records[1].routers[0].kept
    assert kept is not None
    kept[0] -= 1
    (finding,) = checks.capacity(evidence)
    assert "layer 1, micro-batch 0, rank 1: tokens that experts take" in finding.message
    assert finding.where["dp"] == 1


def test_what_was_not_recorded_is_a_finding() -> None:
    evidence = limited()
    evidence.records[0].routers[0].kept = None
    (finding,) = checks.capacity(evidence)
    assert "not recorded" in finding.message


PADDED = replace(LIMITED, pad_to_capacity=True)


def test_choices_show_what_experts_take_in_every_step() -> None:
    steps = chosen([]).cell.config.train.steps
    for step in range(steps + 1):
        assert checks.capacity(chosen([[0, 1], [2], [0, 3]], step=step)) == []
        (finding,) = checks.capacity(chosen([[0, 1], [0, 2], [0, 3]], step=step))
        when = ["", ", step 1", ", evaluation 0"][step]
        assert finding.message.startswith(f"layer 2, micro-batch 1, rank 0{when}: tokens that experts take: 3, 1, 1, 1")
        assert (finding.where["step"], finding.measured, finding.bound) == (step, [3, 1, 1, 1], [2, 1, 1, 1])


def test_only_experts_that_are_filled_take_tokens_that_did_not_choose_them() -> None:
    others = [[0, 1], [0, 3], [2]]
    (finding,) = checks.capacity(chosen(others))
    assert "experts take 2 tokens that did not choose them" in finding.message
    assert checks.capacity(chosen([[0, 1, 2, 3], [0, 1, 2, 3], []], PADDED)) == []
    (finding,) = checks.capacity(chosen(others, PADDED))
    assert finding.bound == [2, 2, 2, 2]


def test_experts_without_a_capacity_are_left_alone() -> None:
    assert checks.capacity(with_routers()) == []
