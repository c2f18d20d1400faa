"""What the routers of a cell chose, where rounding decides near ties: the oracle follows the ranks, and says how far.

A score that rounding moves makes another expert the best of a slot, or another slot the last within an expert's
capacity, and then nothing of that slot is comparable: often in bf16, and in fp32 with many experts. So the oracle takes
the ranks' choice in every step and evaluation, and the judge asks whether its own scores allow it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from harness.core.cell.config import CellConfig
from harness.core.packing.arithmetic import PAD
from harness.core.run.records import ChoiceSeen, FollowedSeen, RankRecord
from harness.oracle.rows import shares_of

Place = tuple[int, int, int, int]  # step, replica, micro-batch, layer; evaluations come after all steps


class Choice(NamedTuple):
    """Of one router for one micro-batch: [t, k] int64, experts of each slot."""

    chosen: Tensor
    preferred: Tensor | None  # by score alone; None: the same
    taken: Tensor | None = None  # [t, e] bool: with a capacity, the experts that take each slot


Choices = Mapping[Place, Choice]
NO_CHOICES: Choices = {}


def choices_of(config: CellConfig, records: Sequence[RankRecord]) -> Choices:
    """Return the choices in the ranks' records; without those that do not cover every slot."""
    layout = config.layout
    parts = layout.tp if layout.sp else 1
    seen: dict[Place, dict[int, ChoiceSeen]] = {}  # by number of the share of slots
    for record in records:
        at = record.place
        if at.tp < parts:  # without sequence parallelism every tensor-parallel rank routes all slots
            for choice in record.choices:
                place = (choice.step, at.dp, choice.micro_batch, choice.layer)
                seen.setdefault(place, {})[at.cp * parts + at.tp] = choice
    joined = {place: _joined(config, place, seen[place]) for place in sorted(seen)}
    return {place: choice for place, choice in joined.items() if choice is not None}


def _joined(config: CellConfig, place: Place, seen: Mapping[int, ChoiceSeen]) -> Choice | None:
    step, replica, micro_batch, _ = place
    plans = config.micro_batches(step)[replica]
    if micro_batch >= len(plans):
        return None
    shares = shares_of(config, plans[micro_batch])
    if any(len(seen[n].experts) != len(share) if n in seen else True for n, share in enumerate(shares)):
        return None
    # Ranks route their slots in ascending order, whatever the zigzag; argsort inverts the concatenation of their
    # shares.
    order = torch.cat([share.sort().values for share in shares]).argsort()
    ranks = [seen[number] for number in range(len(shares))]
    chosen = torch.tensor([experts for one in ranks for experts in one.experts])[order]
    preferred = taken = None
    if any(one.preferred is not None for one in ranks):
        preferred = torch.tensor([experts for one in ranks for experts in one.preferred or one.experts])[order]
    moe = config.model.moe
    if moe is not None and moe.capacity_factor is not None:
        by_slot = [experts for one in ranks for experts in one.taken or ()]
        if len(by_slot) != len(order):
            return None
        taken = torch.tensor([[expert in experts for expert in range(moe.experts)] for experts in by_slot])[order]
    return Choice(chosen, preferred, taken)


class Ranked(NamedTuple):
    """The scores by which a router would choose, and the choice that it was given."""

    scores: Tensor  # [t, e]
    choice: Choice
    documents: Tensor  # [t] int64, PAD for padding
    positions: Tensor  # [t] int64
    order: Tensor | None = None  # [t, e]: with a capacity, by which an expert takes slots; 0 where it is not chosen
    shares: tuple[Tensor, ...] = ()  # the slots that one rank routes


def followed(exact: Mapping[Place, Ranked], rounded: Mapping[Place, Ranked]) -> list[FollowedSeen]:
    """Return how far choices were followed, by step and layer; `rounded`: in the cell's dtype."""
    worst: dict[tuple[int, int, bool], FollowedSeen] = {}
    for place in sorted(exact):
        ranked, other = exact[place], rounded[place]
        found = [_seen(place, ranked, _shortfall(ranked), _furthest(ranked.scores, other.scores))]
        if ranked.order is not None and other.order is not None:
            overtaken, rounding = _overtaken(ranked, ranked.order), _furthest(ranked.order, other.order)
            found.append(_seen(place, ranked, overtaken, rounding, dropped=True))
        for seen in found:
            key = (seen.step, seen.layer, seen.dropped)
            known = worst.setdefault(key, seen)
            # The worst slot of the layer is judged, by the largest rounding seen in it: both come from the same step.
            larger = known if known.shortfall >= seen.shortfall else seen
            worst[key] = replace(larger, rounding=max(known.rounding, seen.rounding))
    return [worst[place] for place in sorted(worst)]


def _furthest(exact: Tensor, rounded: Tensor) -> float:
    return float((exact - rounded.double()).abs().max())


def _seen(
    place: Place, ranked: Ranked, short: tuple[Tensor, Tensor], rounding: float, *, dropped: bool = False
) -> FollowedSeen:
    """Of the slot with the largest shortfall; `short`: [t] of every slot, and of which expert."""
    values, experts = short
    real = values.masked_fill(ranked.documents == PAD, -torch.inf)
    slot = int((real if float(real.max()) > rounding else values).argmax())  # a token says more than padding
    document = int(ranked.documents[slot])
    return FollowedSeen(
        step=place[0],
        layer=place[3],
        dropped=dropped,
        shortfall=max(float(values[slot]), 0.0),
        rounding=rounding,
        document=document,
        position=0 if document == PAD else int(ranked.positions[slot]),
        expert=int(experts[slot]),
    )


def _chosen(ranked: Ranked) -> Tensor:
    return torch.zeros_like(ranked.scores, dtype=torch.bool).scatter(1, ranked.choice.chosen, True)


def _shortfall(ranked: Ranked) -> tuple[Tensor, Tensor]:
    """Return by how much the lowest score of a chosen expert is below the highest of one left out, and that expert."""
    mine = _chosen(ranked)
    lowest = ranked.scores.masked_fill(~mine, torch.inf).min(1)
    return ranked.scores.masked_fill(mine, -torch.inf).amax(1) - lowest.values, lowest.indices


def _overtaken(ranked: Ranked, order: Tensor) -> tuple[Tensor, Tensor]:
    """Return by how much a slot that an expert drops ranks before the last one of its rank that the expert takes."""
    taken = ranked.choice.taken
    assert taken is not None
    dropped, short = _chosen(ranked) & ~taken, torch.zeros_like(order)
    for share in ranked.shares:
        last = order[share].masked_fill(~taken[share], torch.inf).amin(0)
        short[share] = (order[share] - last).masked_fill(~dropped[share], -torch.inf)
    return short.max(1)
