"""The tp x pp x cp ranks of a replica hold the same packed params.

Ranks whose values are not the plan's are findings of `params_agree_plan`, absent ones of `params_present`; what is
left here are fields that the plan allows in two forms (padded offsets given or not) but not mixed, and formats.
"""

from __future__ import annotations

from dataclasses import replace

from harness.core.run.records import SeenParams
from harness.judge.checks.finding import CheckFinding
from harness.judge.diagnosis import fault_classes
from harness.judge.evidence.cell_evidence import CellEvidence, ParamsSeen
from harness.judge.evidence.packed_params import form_problems, problems_of
from harness.judge.locations import RankLocation, fold, listed, reach


def check(evidence: CellEvidence) -> list[CheckFinding]:
    groups: dict[int, list[ParamsSeen]] = {}
    for item in evidence.params_seen:
        if not problems_of(item) and not form_problems(item.params, evidence.cell.config.style, item.device):
            groups.setdefault(id(item.truth), []).append(item)
    odd: list[tuple[RankLocation, list[str]]] = []
    for members in groups.values():
        odd += _odd(members)
    if not odd:
        return []
    first, where = fold([place for place, _ in odd])
    fields = next(fields for place, fields in odd if place == first)
    return [
        CheckFinding(
            fault_class=fault_classes.RANKS_DIFFER,
            message=f"{listed(fields)} at {first} differs from the other ranks of the replica{reach(where)}",
            where={**where, "field": fields[0]},
            measured=fields,
            bound="equal on all tp x pp x cp ranks",
        )
    ]


def _odd(members: list[ParamsSeen]) -> list[tuple[RankLocation, list[str]]]:
    """Places that differ from what most hold (of equally many, what the first holds), and in which fields."""
    forms: list[tuple[SeenParams, list[RankLocation]]] = []
    for item in members:
        bare = replace(item.params, forms={})  # tensor identities differ by rank
        alike = next((places for other, places in forms if other == bare), None)
        if alike is None:
            forms.append((bare, list(item.places)))
        else:
            alike += item.places
    usual = max(forms, key=lambda form: len(form[1]))[0]
    return [
        (place, [name for name in vars(bare) if getattr(bare, name) != getattr(usual, name)])
        for bare, places in forms
        if bare is not usual
        for place in places
    ]
