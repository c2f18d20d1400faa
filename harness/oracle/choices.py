"""What the routers of a cell chose, where rounding decides near ties: the oracle follows the ranks, and says how far.

A score that rounding moves makes another expert the best of a slot, and then nothing of that slot is comparable: often
in bf16, and in fp32 with many experts. So the oracle takes the ranks' choice in every step and evaluation, and the
judge asks whether its own scores allow it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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


Choices = Mapping[Place, Choice]
NO_CHOICES: Choices = {}


def choices_of(config: CellConfig, records: Sequence[RankRecord]) -> Choices:
    """The choices in the ranks' records; without those that do not cover every slot."""
    layout = config.layout
    parts = layout.tp if layout.sp else 1
    seen: dict[Place, dict[int, ChoiceSeen]] = {}  # by number of the share of slots
    for record in records:
        at = record.place
        if at.tp < parts:  # without sequence parallelism every tensor-parallel rank routes all slots
            for choice in record.choices:
                place = (choice.step, at.dp, choice.micro_batch, choice.layer)
                seen.setdefault(place, {})[at.cp * parts + at.tp] = choice
    found = ((place, _joined(config, place, shares)) for place, shares in seen.items())
    return {place: choice for place, choice in sorted(found, key=lambda one: one[0]) if choice is not None}


def _joined(config: CellConfig, place: Place, seen: Mapping[int, ChoiceSeen]) -> Choice | None:
    step, replica, micro_batch, _ = place
    plans = config.micro_batches(step)[replica]
    if micro_batch >= len(plans):
        return None
    shares = shares_of(config, plans[micro_batch])
    if any(len(seen[n].experts) != len(share) if n in seen else True for n, share in enumerate(shares)):
        return None
    order = torch.cat([share.sort().values for share in shares]).argsort()
    ranks = [seen[number] for number in range(len(shares))]
    chosen = torch.tensor([experts for one in ranks for experts in one.experts])[order]
    if all(one.preferred is None for one in ranks):
        return Choice(chosen, None)
    preferred = torch.tensor([experts for one in ranks for experts in one.preferred or one.experts])[order]
    return Choice(chosen, preferred)


class Ranked(NamedTuple):
    """The scores by which a router would choose, and the choice that it was given."""

    scores: Tensor  # [t, e]
    choice: Choice
    documents: Tensor  # [t] int64, PAD for padding
    positions: Tensor  # [t] int64


def followed(exact: Mapping[Place, Ranked], rounded: Mapping[Place, Ranked]) -> list[FollowedSeen]:
    """How far choices were followed, by step and layer; `rounded`: in the cell's dtype."""
    worst: dict[tuple[int, int], FollowedSeen] = {}
    for (step, replica, micro_batch, layer), ranked in sorted(exact.items(), key=lambda one: one[0]):
        other = rounded[step, replica, micro_batch, layer].scores.double()
        seen = _shortfall(step, layer, ranked, float((ranked.scores - other).abs().max()))
        known = worst.setdefault((step, layer), seen)
        rounding = max(known.rounding, seen.rounding)
        worst[step, layer] = known if known.shortfall >= seen.shortfall else seen
        worst[step, layer].rounding = rounding
    return [worst[place] for place in sorted(worst)]


def _shortfall(step: int, layer: int, ranked: Ranked, rounding: float) -> FollowedSeen:
    mine = torch.zeros_like(ranked.scores, dtype=torch.bool).scatter(1, ranked.choice.chosen, True)
    lowest = ranked.scores.masked_fill(~mine, torch.inf).min(1)
    left = ranked.scores.masked_fill(mine, -torch.inf).amax(1)
    short = left - lowest.values
    real = short.masked_fill(ranked.documents == PAD, -torch.inf)
    slot = int((real if float(real.max()) > rounding else short).argmax())  # a token says more than padding
    document = int(ranked.documents[slot])
    return FollowedSeen(
        step=step,
        layer=layer,
        shortfall=max(float(short[slot]), 0.0),
        rounding=rounding,
        document=document,
        position=0 if document == PAD else int(ranked.positions[slot]),
        expert=int(lowest.indices[slot]),
    )
