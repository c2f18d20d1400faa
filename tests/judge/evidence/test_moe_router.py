from __future__ import annotations

import pytest

from harness.core.run.records import ExpertShare
from harness.features.experts.checks import own_aux_loss
from harness.features.experts.config import MoeConfig


def row(tokens: int, counts: list[int], scores: list[float]) -> ExpertShare:
    return ExpertShare(tokens=tokens, counts=counts, scores=scores)


def test_a_balanced_router_costs_its_coefficient() -> None:
    """E / (k T^2) * E * (k T / E) * (T / E) = 1."""
    moe = MoeConfig(experts=4, topk=2, aux_loss="aux_loss", aux_loss_coeff=0.5)
    assert own_aux_loss(moe, [row(8, [4] * 4, [2.0] * 4)]) == pytest.approx(0.5)


def test_tokens_that_all_go_to_one_pair_of_experts_cost_more() -> None:
    moe = MoeConfig(experts=4, topk=2, aux_loss="aux_loss", aux_loss_coeff=1.0)
    assert own_aux_loss(moe, [row(8, [8, 8, 0, 0], [4.0, 4.0, 0.0, 0.0])]) == pytest.approx(2.0)


def test_per_row_the_mean_of_the_rows_counts_and_over_all_their_sum() -> None:
    moe = MoeConfig(experts=2, topk=1, aux_loss="seq_aux_loss", aux_loss_coeff=1.0)
    rows = [row(4, [4, 0], [4.0, 0.0]), row(4, [0, 4], [0.0, 4.0])]
    assert own_aux_loss(moe, rows) == pytest.approx(2.0)
    assert own_aux_loss(moe, rows, kind="aux_loss") == pytest.approx(1.0)


def test_no_tokens_cost_nothing() -> None:
    assert own_aux_loss(MoeConfig(aux_loss="aux_loss"), [row(0, [0] * 4, [0.0] * 4)]) == 0.0
