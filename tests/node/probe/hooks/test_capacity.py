"""The harness's own scores, and the order in which experts take tokens."""

from __future__ import annotations

import pytest
import torch

from harness.core.cell.model import MoeConfig
from harness.node.probe.hooks.capacity import misplaced, routing_scores

LOGITS = torch.tensor([[3.0, 0.0], [2.0, 0.0], [1.0, 0.0], [0.0, 1.0]])  # three tokens choose expert 0, one expert 1
ONE = MoeConfig(experts=2, topk=1, capacity_factor=1.0)


def taken(*tokens: int) -> torch.Tensor:
    """Expert 0 takes these, expert 1 its only one."""
    found = torch.zeros(4, 2, dtype=torch.bool)
    found[list(tokens), 0] = found[3, 1] = True
    return found


@pytest.mark.parametrize("score", ["softmax", "sigmoid"])
def test_scores_of_a_token_add_up_to_1(score: str) -> None:
    scores = routing_scores(MoeConfig(score_function=score), LOGITS)
    torch.testing.assert_close(scores.sum(-1), torch.ones(4))
    assert (scores[0, 0] > scores[0, 1]) and (scores[3, 1] > scores[3, 0])


@pytest.mark.parametrize("score", ["softmax", "sigmoid"])
def test_tokens_with_the_lowest_weights_are_dropped(score: str) -> None:
    moe = MoeConfig(experts=2, topk=1, capacity_factor=1.0, score_function=score)
    assert misplaced(moe, LOGITS, taken(0, 1)) == 0
    assert misplaced(moe, LOGITS, taken(0, 2)) == 1  # token 1 ranks before token 2
    assert misplaced(moe, LOGITS, taken(2)) == 2


def test_equal_weights_have_no_order() -> None:
    equal = torch.tensor([[1.0, 0.0], [1.0, 0.0], [1.0, 0.0], [0.0, 1.0]])
    assert misplaced(ONE, equal, taken(0, 1)) == misplaced(ONE, equal, taken(1, 2)) == 0


def test_the_last_tokens_are_dropped_by_position() -> None:
    last = MoeConfig(experts=2, topk=1, capacity_factor=1.0, drop_policy="position")
    assert misplaced(last, LOGITS, taken(0, 1)) == 0
    assert misplaced(last, LOGITS, taken(1, 2)) == 1


def test_padding_that_takes_the_place_of_a_token_is_found() -> None:
    assert misplaced(ONE, LOGITS, taken(0, 1, 3)) == 1
