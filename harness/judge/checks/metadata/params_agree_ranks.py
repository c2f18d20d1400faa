"""The tp x pp x cp ranks of a replica hold the same packed params.

`params_agree_plan` covers wrong values, and `params_present` absent params. What remains are fields that the plan
allows in two forms (padded offsets given or not), which ranks must not mix, and formats.
"""

from __future__ import annotations

from dataclasses import replace

from harness.core.run.records import SeenParams
from harness.judge.checks.finding import CheckFinding
from harness.judge.diagnosis import fault_classes
from harness.judge.evidence.cell_evidence import CellEvidence
from harness.judge.evidence.packed_params import form_problems, problems_of
from harness.judge.evidence.truth import ParamsSeen
from harness.judge.locations import RankLocation, extent, fold, listed


def check(evidence: CellEvidence) -> list[CheckFinding]:
    groups: dict[int, list[ParamsSeen]] = {}
    for item in evidence.params_seen:
        if not problems_of(item) and not form_problems(
            item.params, evidence.cell.config.style, item.device, evidence.layout.cp
        ):
            groups.setdefault(id(item.truth), []).append(item)
    differing: list[tuple[RankLocation, list[str]]] = []
    for members in groups.values():
        differing += _differing(members)
    if not differing:
        return []
    first, where = fold([place for place, _ in differing])
    fields = next(fields for place, fields in differing if place == first)
    return [
        CheckFinding(
            fault_class=fault_classes.RANKS_DIFFER,
            message=f"{listed(fields)} at {first} differs from the other ranks of the replica{extent(where)}",
            where={**where, "field": fields[0]},
            measured=fields,
            bound="equal on all tp x pp x cp ranks",
        )
    ]


def _differing(members: list[ParamsSeen]) -> list[tuple[RankLocation, list[str]]]:
    """Locations whose params differ from the most frequent ones (in a tie, from the first), and the fields that do."""
    forms: list[tuple[SeenParams, list[RankLocation]]] = []
    for item in members:
        values = replace(item.params, forms={})  # tensor identities differ by rank
        same = next((places for other, places in forms if other == values), None)
        if same is None:
            forms.append((values, list(item.places)))
        else:
            same += item.places
    usual = max(forms, key=lambda form: len(form[1]))[0]
    return [
        (place, [name for name in vars(values) if getattr(values, name) != getattr(usual, name)])
        for values, places in forms
        if values is not usual
        for place in places
    ]
