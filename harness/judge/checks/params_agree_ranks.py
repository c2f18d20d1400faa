"""The tp x pp x cp ranks of a replica hold the same packed params.

Ranks whose values are not the plan's are findings of `params_agree_plan`, absent ones of `params_present`; what is
left here are fields that the plan allows in two forms (padded offsets given or not) but not mixed, and formats.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import astuple, replace

from harness.judge import fault_classes
from harness.judge.evidence import CellEvidence
from harness.judge.params import form_problems, judged
from harness.judge.places import Place, fold, listed, reach
from harness.words.outcomes import Finding, Lane
from harness.words.records import SeenParams


def check(evidence: CellEvidence) -> list[Finding]:
    groups: dict[tuple[int, int, int], list[tuple[Place, SeenParams]]] = {}
    for sighting, seen, _, problems in judged(evidence):
        if not problems and not form_problems(seen, evidence.cell.config.style, None):
            place = sighting.place
            groups.setdefault((place.at.dp, place.step, place.micro_batch), []).append((place, seen))
    odd: list[tuple[Place, list[str]]] = []
    for members in groups.values():
        odd += _odd(members)
    if not odd:
        return []
    first, where = fold([place for place, _ in odd])
    fields = next(fields for place, fields in odd if place == first)
    return [
        Finding(
            lane=Lane.METADATA,
            check="params_agree_ranks",
            fault_class=fault_classes.RANKS_DIFFER,
            message=f"{listed(fields)} at {first} differs from the other ranks of the replica{reach(where)}",
            where={**where, "field": fields[0]},
            measured=fields,
            bound="equal on all tp x pp x cp ranks",
        )
    ]


def _odd(members: list[tuple[Place, SeenParams]]) -> list[tuple[Place, list[str]]]:
    """Members that differ from what most hold (of equally many, what the first holds), and in which fields."""
    forms: dict[int, str] = {}
    for _, seen in members:
        if id(seen) not in forms:
            forms[id(seen)] = repr(astuple(replace(seen, forms={})))  # each rank has tensors of its own
    counts = Counter(forms[id(seen)] for _, seen in members)
    if len(counts) == 1:
        return []
    usual = counts.most_common(1)[0][0]
    norm = next(seen for _, seen in members if forms[id(seen)] == usual)
    return [
        (place, [name for name in vars(seen) if name != "forms" and getattr(seen, name) != getattr(norm, name)])
        for place, seen in members
        if forms[id(seen)] != usual
    ]
