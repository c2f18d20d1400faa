"""Routers and experts: what is chosen, by what, with which weights, and the losses of a few slots by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from harness.oracle.choices import Choice
from harness.oracle.experts import Routed, balance_loss, route, z_loss
from harness.oracle.fields import Experts, Model
from harness.oracle.model import forward
from harness.oracle.weights import initial_weights
from tests.oracle.streams import stream

TINY = Model(layers=1, hidden=4, vocab=5, heads=2, groups=1, head=2, ffn=3)
ROUTED = Experts(count=3, chosen=2, ffn=2, balance="aux_loss", balance_weight=0.5, z_weight=0.1)


def drawn(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(3), dtype=torch.float64)


def routed_by(experts: Experts, logits: Tensor, bias: Tensor | None = None) -> Routed:
    bias = torch.zeros(experts.count, dtype=torch.float64) if bias is None else bias
    return route(logits, bias, 1, experts, stream(9, (len(logits),)))


@pytest.mark.parametrize("score", ["softmax", "sigmoid"])
def test_weights_and_counts_are_those_of_the_choice_that_is_followed(score: str) -> None:
    experts, slots = Experts(count=4, chosen=2, ffn=2, score=score), stream(9, (6,))
    logits = torch.randn(6, 4, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    others = torch.tensor([[0, 1]] * 6)
    own = route(logits, torch.zeros(4), 1, experts, slots)
    same = route(logits, torch.zeros(4), 1, experts, slots, Choice(own.chosen.nonzero()[:, 1].view(6, 2), None))
    assert torch.equal(own.weights, same.weights) and torch.equal(own.preferred, same.preferred)
    made = route(logits, torch.zeros(4), 1, experts, slots, Choice(others, None))
    assert made.chosen[:, :2].all() and not made.chosen[:, 2:].any()
    assert torch.equal(made.preferred, made.chosen) and not made.weights[:, 2:].any()
    values = logits[:, :2].softmax(-1) if score == "softmax" else logits[:, :2].sigmoid()
    torch.testing.assert_close(made.weights[:, :2], values / values.sum(-1, keepdim=True))


def test_what_is_preferred_by_score_alone_is_followed_apart() -> None:
    experts, slots = Experts(count=4, chosen=1, ffn=2, score="sigmoid", biased=True), stream(9, (2,))
    choice = Choice(torch.tensor([[0], [1]]), torch.tensor([[2], [3]]))
    made = route(torch.zeros(2, 4), torch.zeros(4), 1, experts, slots, choice)
    assert made.chosen.nonzero().tolist() == [[0, 0], [1, 1]]
    assert made.preferred.nonzero().tolist() == [[0, 2], [1, 3]]


def test_what_experts_take_is_followed() -> None:
    experts, slots = Experts(count=2, chosen=1, ffn=2, capacity=1.0, before=True), stream(9, (4,))
    logits = torch.tensor([[3.0, 0.0], [2.0, 0.0], [1.0, 0.0], [0.0, 1.0]])
    own = route(logits, torch.zeros(2), 1, experts, slots)
    assert own.taken.nonzero().tolist() == [[0, 0], [1, 0], [3, 1]]
    taken = torch.tensor([[0, 0], [1, 0], [1, 0], [0, 1]]).bool()
    made = route(logits, torch.zeros(2), 1, experts, slots, Choice(torch.tensor([[0], [0], [0], [1]]), None, taken))
    assert torch.equal(made.taken, taken) and made.weights[0].tolist() == [0.0, 0.0]
    assert made.chosen[0].tolist() == [True, False]


def test_weights_are_rounded_to_the_dtype_of_the_model() -> None:
    logits = torch.randn(6, 4, generator=torch.Generator().manual_seed(3)).bfloat16()
    routed = route(logits, torch.zeros(4), 1, Experts(count=4, chosen=2, ffn=2), stream(9, (6,)))
    assert routed.weights.dtype == torch.float32 and torch.equal(routed.weights, routed.weights.bfloat16().float())


def test_a_layer_follows_the_choice_that_it_is_given() -> None:
    model, rows = replace(TINY, experts=ROUTED), stream(TINY.vocab, (3, 2))
    zeros = {1: torch.zeros(3, dtype=torch.float64)}
    weights = initial_weights(model, 3, torch.float64)
    for others in ([0, 2], [1, 2]):
        choice = Choice(torch.tensor([others] * 5), None)
        (routed,) = forward(weights, model, rows, zeros, {1: choice}).routed
        assert routed.chosen.nonzero()[:, 1].view(5, 2).tolist() == [others] * 5


def test_experts_of_a_bf16_model_return_bf16() -> None:
    model = replace(TINY, experts=ROUTED)
    weights = initial_weights(model, 3, torch.bfloat16)
    seen = forward(weights, model, stream(TINY.vocab, (3, 2)), {1: torch.zeros(3)})
    assert seen.outputs[-1].dtype == torch.bfloat16 and seen.routed[0].weights.dtype == torch.float32


@pytest.mark.parametrize("before", [False, True])
def test_a_bias_is_for_sigmoid_alone(before: bool) -> None:
    bias = torch.tensor([0.0, 0.0, 9.0, 9.0], dtype=torch.float64)
    experts, logits = Experts(count=4, chosen=2, ffn=2, before=before), drawn(6, 4)
    plain, biased = routed_by(experts, logits), routed_by(experts, logits, bias)
    assert torch.equal(plain.chosen, biased.chosen)
    assert routed_by(replace(experts, score="sigmoid"), logits, bias).chosen[:, 2:].all()


@pytest.mark.parametrize("score", ["softmax", "sigmoid"])
@pytest.mark.parametrize("before", [False, True])
def test_scores_of_the_loss_are_shares_of_a_slot_whatever_is_chosen(score: str, before: bool) -> None:
    logits = drawn(6, 4)
    routed = routed_by(Experts(count=4, chosen=2, ffn=2, score=score, before=before), logits)
    values = logits.exp() if score == "softmax" else 1 / (1 + (-logits).exp())
    for slot, own in zip(values, routed.scores):
        torch.testing.assert_close(own, slot / sum(slot))


def test_a_router_chooses_by_scores_with_their_bias() -> None:
    logits, bias = drawn(6, 4), torch.tensor([0.0, 0.5, 0.0, -0.5], dtype=torch.float64)
    sigmoid = Experts(count=4, chosen=2, ffn=2, score="sigmoid", biased=True)
    torch.testing.assert_close(routed_by(sigmoid, logits, bias).ranked, 1 / (1 + (-logits).exp()) + bias)
    torch.testing.assert_close(routed_by(Experts(count=4, chosen=2, ffn=2), logits).ranked, logits)


def test_groups_of_which_any_number_is_chosen_limit_nothing() -> None:
    logits = torch.tensor([[5.0, 0.0, 4.0, 1.0]], dtype=torch.float64)
    experts = Experts(count=4, chosen=2, ffn=2, groups=2)
    assert routed_by(experts, logits).chosen.nonzero()[:, 1].tolist() == [0, 2]
    limited = routed_by(replace(experts, chosen_groups=1), logits)
    assert limited.chosen.nonzero()[:, 1].tolist() == [0, 1]


def test_slots_are_in_the_order_of_their_weights_or_places_among_those_of_their_rank() -> None:
    """Expert 0 is chosen by the slots 0, 1 and 3 of six; two ranks route the even and the odd ones."""
    logits = torch.tensor([[1.0, 0], [2, 0], [0, 1], [3, 0], [0, 2], [0, 3]], dtype=torch.float64)
    rows = replace(stream(9, (6,)), shares=(torch.arange(0, 6, 2), torch.arange(1, 6, 2)))
    experts = Experts(count=2, chosen=1, ffn=2, capacity=1.0, before=True, drop="position")
    zeros = torch.zeros(2, dtype=torch.float64)
    places = torch.tensor([[3.0, 0], [3, 0], [0, 2], [2, 0], [0, 1], [0, 1]], dtype=torch.float64)
    torch.testing.assert_close(route(logits, zeros, 1, experts, rows).order, places)
    by_weight = route(logits, zeros, 1, replace(experts, drop="probs"), rows).order
    torch.testing.assert_close(by_weight, logits.softmax(-1) * (places > 0))
    assert route(logits, zeros, 1, replace(experts, capacity=None), rows).order is None


@pytest.mark.parametrize("drop", ["probs", "position"])
def test_a_filled_expert_takes_slots_that_did_not_choose_it_with_no_weight(drop: str) -> None:
    logits = torch.tensor([[2.0, 0.0]], dtype=torch.float64).repeat(4, 1)
    experts = Experts(count=2, chosen=1, ffn=2, capacity=1.0, drop=drop)
    filled, plain = routed_by(replace(experts, filled=True), logits), routed_by(experts, logits)
    assert filled.taken.sum(0).tolist() == [2, 2] and plain.taken.sum(0).tolist() == [2, 0]
    assert torch.equal(filled.weights, plain.weights) and not filled.weights[:, 1].any()


@pytest.mark.parametrize("filled", [False, True])
def test_a_capacity_beyond_the_slots_of_a_rank_takes_what_there_is(filled: bool) -> None:
    experts, logits = Experts(count=2, chosen=1, ffn=2, capacity=9.0, filled=filled), drawn(6, 2)
    rows = replace(stream(9, (6,)), shares=(torch.arange(4), torch.arange(4, 6)))
    routed = route(logits, torch.zeros(2, dtype=torch.float64), 1, experts, rows)
    assert torch.equal(routed.taken, torch.ones_like(routed.chosen) if filled else routed.chosen)


def test_rows_count_in_the_loss_by_their_own_slots() -> None:
    """Of eight slots in rows of 4, 2 and 2: weight * e / (k T^2) with T = 8 / 3, and the mean of the rows."""
    experts = replace(ROUTED, balance="seq_aux_loss")
    routed = replace(routed_by(experts, drawn(8, 3)), rows=(4, 2, 2))
    by_row = [
        (routed.preferred[part].double().sum(0) * routed.scores[part].sum(0)).sum()
        for part in (slice(0, 4), slice(4, 6), slice(6, 8))
    ]
    right = 0.5 * 3 / (2 * (8 / 3) ** 2) * sum(by_row) / 3
    torch.testing.assert_close(balance_loss(routed, [routed], [], experts), right, rtol=1e-12, atol=0)


def test_a_single_slot_that_counts_is_divided_by_one_and_none_at_all_has_no_loss() -> None:
    routed = routed_by(ROUTED, drawn(4, 3))
    one = replace(routed, counted=torch.tensor([False, False, True, False]))
    right = 0.5 * 3 / 2 * routed.scores[2][routed.preferred[2]].sum()
    torch.testing.assert_close(balance_loss(one, [one], [], ROUTED), right)
    torch.testing.assert_close(z_loss(one, ROUTED), 0.1 * routed.logits[2].exp().sum().log() ** 2)
    none = replace(routed, counted=torch.zeros(4, dtype=torch.bool))
    assert float(balance_loss(none, [none], [], ROUTED)) == float(z_loss(none, ROUTED)) == 0.0
