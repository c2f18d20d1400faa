"""Upstream's gradient norm, by which it clips, counts every gradient once: every shard, and one of all copies.

Which gradients the norm counts is exact. A parameter that is left out may be too small to change the norm visibly.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from harness.core.run.records import RankRecord
from harness.judge.checks.finding import CheckFinding
from harness.judge.diagnosis import fault_classes
from harness.judge.evidence.assemble import shard_of
from harness.judge.evidence.cell_evidence import CellEvidence
from harness.judge.locations import numbered, where_of
from harness.judge.stats.distance import exactly


class _Held(NamedTuple):
    """A parameter, or its shard, on one rank."""

    record: RankRecord
    shard: int  # -1: all of it
    of_expert: bool  # split otherwise than other weights: over replicas too
    counted: bool


class _Wrong(NamedTuple):
    name: str
    what: str
    record: RankRecord
    times: int


def check(evidence: CellEvidence) -> list[CheckFinding]:
    if not evidence.first_step_whole:  # a copy on a rank that is missing may be the one that is counted
        return []
    wrong = [found for name, held in _by_name(evidence).items() for found in _of(name, held)]
    if not wrong:
        return []
    first = wrong[0]
    names = list(dict.fromkeys(item.name for item in wrong))
    ranks = sorted({item.record.rank for item in wrong})
    place = first.record.place
    return [
        CheckFinding(
            fault_class=fault_classes.GRADIENT_NORM,
            message=f"upstream's gradient norm {first.what}; counted wrongly: {numbered('parameter', names)}",
            where=where_of(place, rank=first.record.rank, parameter=first.name, step=0) | {"ranks": ranks},
            measured=float(first.times),
            bound=exactly("once", "every shard, and one of all copies over tp and stages"),
        )
    ]


def _by_name(evidence: CellEvidence) -> dict[str, list[_Held]]:
    """The ranks that hold a parameter and know whether the norm counts it, in the order of ranks."""
    found: dict[str, list[_Held]] = {}
    for rank in sorted(evidence.records):
        record = evidence.records[rank]
        for seen in record.parameters:
            if seen.in_norm is not None:
                held = _Held(record, shard_of(record.place, seen), seen.shard is not None, seen.in_norm)
                found.setdefault(seen.name, []).append(held)
    return found


def _of(name: str, held: list[_Held]) -> Iterator[_Wrong]:
    """Replicas, context ranks included, must agree: the norm is summed over the ranks of a model only."""
    places: dict[tuple[int, int], _Held] = {}
    for one in held:
        at = (one.record.place.pp, one.shard if one.of_expert else one.record.place.tp)
        first = places.setdefault(at, one)
        if first.counted != one.counted:
            yes, no = (first, one) if first.counted else (one, first)
            what = f"counts {name} on rank {yes.record.rank} and not on its copy of another replica, {no.record.rank}"
            yield _Wrong(name, what, no.record, 0)
            return
    parts: dict[str, list[_Held]] = {}
    for (_, tp), one in places.items():
        kind = "expert tp" if one.of_expert else "tp"
        parts.setdefault(f"the shard of {name} on {kind} rank {tp}" if one.shard >= 0 else name, []).append(one)
    for part, copies in parts.items():
        counted = [one for one in copies if one.counted]
        if not counted:
            yield _Wrong(name, f"leaves out {part}", copies[0].record, 0)
        elif len(counted) > 1:
            ranks = numbered("rank", [one.record.rank for one in counted])
            yield _Wrong(name, f"counts {part} {len(counted)} times, on {ranks}", counted[1].record, len(counted))
