"""Choices of routers: joined from the ranks, followed, and measured against the scores."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from harness.core.cell.config import CellConfig
from harness.core.cell.layout import Coordinates, Layout
from harness.core.packing.arithmetic import PAD
from harness.core.run.records import ChoiceSeen, RankRecord
from harness.features.experts.config import MoeConfig
from harness.oracle.choices import Choice, Choices, Ranked, choices_of, followed
from harness.oracle.experts import route
from harness.oracle.fields import Experts
from harness.oracle.record import key_of, record_of
from harness.oracle.rows import shares_of
from tests.oracle.streams import stream
from tests.oracle.test_train import BUILT, MODEL, cell

MOE = MoeConfig(experts=5, topk=1)
ROUTERS = {"num_moe_experts": "5", "moe_router_topk": "1", "moe_ffn_hidden_size": "4", "moe_router_pre_softmax": "true"}
ROUTED = [replace(one, values=MODEL | ROUTERS) if one.of == "model" else one for one in BUILT]


def rounding_cell(**layout: int) -> CellConfig:
    plain = cell()
    return replace(plain, dtype="bf16", layout=Layout(**layout), model=replace(plain.model, moe=MOE))


def ranks(config: CellConfig, whole: Tensor) -> Iterator[RankRecord]:
    """Records in which layer 1 chose `whole` [slots] for micro-batch 0 of step 0."""
    parts = config.layout.tp if config.layout.sp else 1
    shares = shares_of(config, config.micro_batches(0)[0][0])
    for cp in range(config.layout.cp):
        for tp in range(config.layout.tp):
            mine = whole[shares[cp * parts + tp % parts].sort().values]
            seen = ChoiceSeen(step=0, layer=1, micro_batch=0, experts=mine[:, None].tolist())
            yield RankRecord(cell="", rank=0, place=Coordinates(tp=tp, cp=cp, dp=0, pp=0), choices=[seen])


@pytest.mark.parametrize(
    "layout",
    [{}, {"tp": 2}, {"tp": 2, "sp": True}, {"tp": 2, "cp": 2}, {"tp": 2, "cp": 2, "sp": True}],
    ids=str,
)
def test_ranks_hold_their_slots_of_a_micro_batch(layout: dict[str, int]) -> None:
    config = rounding_cell(**layout)
    whole = torch.arange(config.micro_batches(0)[0][0].slots) % 5
    (found,) = choices_of(config, list(ranks(config, whole))).items()
    place, choice = found
    assert place == (0, 0, 0, 1) and choice.preferred is None
    assert choice.chosen[:, 0].tolist() == whole.tolist()


@pytest.mark.parametrize("layout", [{"tp": 2}, {"tp": 2, "cp": 2}, {"tp": 2, "cp": 2, "sp": True}], ids=str)
def test_the_order_of_records_does_not_matter(layout: dict[str, int]) -> None:
    """Without sequence parallelism the second tensor-parallel rank repeats the first one's choice."""
    config = rounding_cell(**layout)
    whole = torch.arange(config.micro_batches(0)[0][0].slots) % 5
    records = list(ranks(config, whole))
    for record in records:
        record.choices.append(replace(record.choices[0], layer=2))
    found, turned = choices_of(config, records), choices_of(config, records[::-1])
    assert list(found) == list(turned) == [(0, 0, 0, 1), (0, 0, 0, 2)]
    assert all(torch.equal(found[place].chosen, turned[place].chosen) for place in found)


def test_a_choice_for_a_micro_batch_that_no_plan_has_is_not_followed() -> None:
    config = rounding_cell()
    (record,) = ranks(config, torch.zeros(config.micro_batches(0)[0][0].slots, dtype=torch.int64))
    record.choices[0].micro_batch = len(config.micro_batches(0)[0])
    assert choices_of(config, [record]) == {}


def test_a_choice_that_lacks_slots_is_not_followed() -> None:
    config = rounding_cell(tp=2, cp=2, sp=True)
    whole = torch.zeros(config.micro_batches(0)[0][0].slots, dtype=torch.int64)
    assert choices_of(config, list(ranks(config, whole))[1:]) == {}


def test_one_rank_may_prefer_others_where_another_prefers_what_it_chose() -> None:
    config = rounding_cell(tp=2, sp=True)
    whole = torch.zeros(config.micro_batches(0)[0][0].slots, dtype=torch.int64)
    first, second = ranks(config, whole)
    first.choices[0].preferred = [[3] for _ in first.choices[0].experts]
    (choice,) = choices_of(config, [first, second]).values()
    mine = shares_of(config, config.micro_batches(0)[0][0])[0]
    assert choice.preferred is not None
    assert choice.preferred[mine, 0].unique().tolist() == [3]
    assert choice.preferred[:, 0].sum() == 3 * len(mine)


@pytest.mark.parametrize("layout", [{}, {"tp": 2, "sp": True}, {"cp": 2}], ids=str)
def test_what_experts_take_is_joined_too(layout: dict[str, int]) -> None:
    plain = rounding_cell(**layout)
    config = replace(plain, model=replace(plain.model, moe=replace(MOE, capacity_factor=1.0)))
    whole = torch.arange(config.micro_batches(0)[0][0].slots) % 5
    records = list(ranks(config, whole))
    assert choices_of(config, records) == {}
    for record in records:
        (seen,) = record.choices
        seen.taken = [experts if experts != [3] else [] for experts in seen.experts]
    (choice,) = choices_of(config, records).values()
    assert choice.taken is not None
    kept = torch.zeros(len(whole), 5, dtype=torch.bool).scatter(1, whole[:, None], True)
    kept[:, 3] = False
    assert torch.equal(choice.taken, kept)


@pytest.mark.parametrize(("policy", "short"), [("probs", 0.4), ("position", 2.0)])
def test_a_dropped_slot_that_ranks_before_a_taken_one_of_its_rank_is_named(policy: str, short: float) -> None:
    """Experts of two ranks; on the first one the expert drops slot 0, the heaviest and first, on the second rightly."""
    shares = torch.tensor([0, 1, 2]), torch.tensor([3, 4, 5])
    rows = replace(stream(9, (6,)), shares=shares)
    experts = Experts(count=2, chosen=1, ffn=2, capacity=1.0, drop=policy, before=True)
    weights = torch.tensor([0.9, 0.6, 0.5, 0.99, 0.98, 0.97], dtype=torch.float64)
    logits = torch.stack([weights.log(), (1 - weights).log()], -1)
    taken = torch.tensor([[0, 1, 1, 1, 1, 0], [0] * 6]).bool().T
    routed = route(logits, torch.zeros(2), 1, experts, rows, Choice(torch.zeros(6, 1, dtype=torch.int64), None, taken))
    owners = torch.tensor([4, 4, 4, 4, PAD, PAD]), torch.arange(6)
    given = Ranked(routed.ranked, Choice(routed.chosen.nonzero()[:, 1:], None, taken), *owners, routed.order, shares)
    choice, dropped = followed({(2, 0, 0, 1): given}, {(2, 0, 0, 1): given})
    assert (choice.dropped, choice.shortfall) == (False, 0.0)
    assert (dropped.step, dropped.layer, dropped.document, dropped.position, dropped.expert) == (2, 1, 4, 0, 0)
    assert dropped.dropped and dropped.shortfall == pytest.approx(short)


def test_the_largest_shortfall_is_named_with_its_slot() -> None:
    scores = torch.tensor([[0.1, 0.5, 0.4], [0.7, 0.2, 0.3], [0.0, 0.0, 0.9]], dtype=torch.float64)
    choice = Choice(torch.tensor([[1], [2], [2]]), None)
    owners = (torch.tensor([4, 4, PAD]), torch.tensor([0, 1, 0]))
    exact = {(2, 0, 0, 1): Ranked(scores, choice, *owners)}
    (seen,) = followed(exact, {place: ranked._replace(scores=scores + 0.01) for place, ranked in exact.items()})
    assert (seen.step, seen.layer, seen.document, seen.position, seen.expert) == (2, 1, 4, 1, 2)
    assert seen.shortfall == pytest.approx(0.4) and seen.rounding == pytest.approx(0.01)


def short_of(*shortfalls: float, owners: tuple[int, ...] = (), first: int = 0) -> Ranked:
    """A slot for each shortfall, at positions from `first`: it was given expert 0 of two, the scores say 1."""
    scores = torch.tensor([[0.0, short] for short in shortfalls], dtype=torch.float64)
    choice = Choice(torch.zeros(len(scores), 1, dtype=torch.int64), None)
    documents = torch.tensor(owners or [0] * len(scores))
    return Ranked(scores, choice, documents, torch.arange(len(scores)) + first)


def by_rounding(ranked: Ranked, rounding: float) -> Ranked:
    return ranked._replace(scores=ranked.scores + rounding)


@pytest.mark.parametrize(
    ("shortfalls", "named"), [((0.5, 0.25), 0), ((0.25, 0.5), 100), ((0.5, 0.5), 0)], ids=["first", "second", "both"]
)
def test_of_micro_batches_the_first_with_the_largest_shortfall_is_named_and_the_largest_rounding_counts(
    shortfalls: tuple[float, float], named: int
) -> None:
    for roundings in ((0.0, 0.125), (0.125, 0.0)):
        exact = {(3, 0, number, 2): short_of(shortfalls[number], first=100 * number) for number in (1, 0)}
        rounded = {place: by_rounding(ranked, roundings[place[2]]) for place, ranked in exact.items()}
        (seen,) = followed(exact, rounded)
        assert (seen.step, seen.layer, seen.position) == (3, 2, named)
        assert (seen.shortfall, seen.rounding) == (max(shortfalls), 0.125)


def test_shortfalls_of_steps_and_layers_are_apart() -> None:
    exact = {(1, 0, 0, 1): short_of(0.5), (0, 0, 0, 2): short_of(0.25), (0, 0, 0, 1): short_of(0.125)}
    found = [(seen.step, seen.layer, seen.shortfall) for seen in followed(exact, exact)]
    assert found == [(0, 1, 0.125), (0, 2, 0.25), (1, 1, 0.5)]


@pytest.mark.parametrize(
    ("rounding", "document", "position", "shortfall"), [(0.125, 7, 11, 0.25), (0.25, PAD, 0, 0.5), (0.375, PAD, 0, 0.5)]
)
def test_padding_is_named_only_where_rounding_explains_all_tokens(
    rounding: float, document: int, position: int, shortfall: float
) -> None:
    ranked = short_of(0.125, 0.25, 0.5, owners=(7, 7, PAD), first=10)
    (seen,) = followed({(0, 0, 0, 1): ranked}, {(0, 0, 0, 1): by_rounding(ranked, rounding)})
    assert (seen.document, seen.position, seen.shortfall) == (document, position, shortfall)


def test_a_shortfall_is_within_a_slot() -> None:
    """The second slot's highest score is far above the first one's; it was chosen."""
    scores = torch.tensor([[0.0, 0.5], [9.0, 8.0]], dtype=torch.float64)
    owners = torch.tensor([4, 4]), torch.tensor([0, 1])
    ranked = Ranked(scores, Choice(torch.tensor([[0], [0]]), None), *owners)
    (seen,) = followed({(0, 0, 0, 1): ranked}, {(0, 0, 0, 1): ranked})
    assert (seen.position, seen.shortfall) == (0, 0.5)


def dropped_by(order: list[list[float]], taken: list[list[int]]) -> float:
    """The shortfall of what two experts, both chosen by every slot of one rank, drop."""
    slots = len(order)
    choice = Choice(torch.tensor([[0, 1]] * slots), None, torch.tensor(taken).bool())
    places = torch.zeros(slots, dtype=torch.int64), torch.arange(slots)
    by = torch.tensor(order, dtype=torch.float64)
    ranked = Ranked(torch.zeros_like(by), choice, *places, by, (torch.arange(slots),))
    _, dropped = followed({(0, 0, 0, 1): ranked}, {(0, 0, 0, 1): ranked})
    return dropped.shortfall


def test_each_expert_drops_by_its_own_order() -> None:
    """The second expert's weights are all below those that the first one drops, and both drop their lightest slot."""
    order = [[0.9, 0.3], [0.8, 0.2], [0.7, 0.1]]
    assert dropped_by(order, [[1, 1], [1, 1], [0, 0]]) == 0.0
    assert dropped_by(order, [[1, 1], [1, 0], [0, 1]]) == pytest.approx(0.1)


def all_of_expert_0(config: CellConfig) -> Choices:
    return {
        (step, 0, number, layer): Choice(torch.zeros(plan.slots, 1, dtype=torch.int64), None)
        for step in range(2)
        for number, plan in enumerate(config.micro_batches(step)[0])
        for layer in (1, 2)
    }


def test_after_a_resume_the_choices_before_it_are_followed_and_not_judged_again() -> None:
    config = rounding_cell()
    resumed = replace(config, saved_in=config.layout)
    choices = all_of_expert_0(config)
    whole, later = record_of("cell", config, ROUTED, choices), record_of("cell", resumed, ROUTED, choices)
    assert resumed.start_step == 1 and [(seen.step, seen.layer) for seen in later.followed] == [(1, 1), (1, 2)]
    assert later.steps == whole.steps
    alone = record_of("cell", resumed, ROUTED, {place: one for place, one in choices.items() if place[0]})
    assert alone.steps[1].loss_sum != whole.steps[1].loss_sum
    assert key_of(resumed, ROUTED, choices) != key_of(config, ROUTED, choices)


def test_a_record_follows_the_choices_and_has_a_key_of_its_own() -> None:
    config = rounding_cell()
    choices = all_of_expert_0(config)
    record = record_of("cell", config, ROUTED, choices)
    assert [(seen.step, seen.layer) for seen in record.followed] == [(0, 1), (0, 2), (1, 1), (1, 2)]
    assert all(seen.shortfall > 0 and seen.rounding > 0 and seen.expert == 0 for seen in record.followed)
    counts = [sum(row.counts) - row.counts[0] for seen in record.routers for row in (*seen.real, *seen.padding)]
    assert set(counts) == {0}
    assert record_of("cell", config, ROUTED).followed == []
    assert key_of(config, ROUTED, choices) != key_of(config, ROUTED)
