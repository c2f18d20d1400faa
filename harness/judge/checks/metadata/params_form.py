"""Packed params have the form that kernels expect, and unpacked runs have no packed params.

Every cu_seqlens tensor is int32, 1-D and on the model's device; max_seqlen is a Python int, the format thd. A
context-parallel group, or its size, is the layout's where one is given.
"""

from __future__ import annotations

from harness.judge.checks.finding import CheckFinding
from harness.judge.diagnosis import fault_classes
from harness.judge.evidence.cell_evidence import CellEvidence
from harness.judge.evidence.packed_params import FieldProblem, form_problems
from harness.judge.locations import RankLocation, extent, fold, unequal

_NAMES = {"max_seqlen_type": "type of max_seqlen", "context_ranks": "number of context ranks in the packed params"}


def check(evidence: CellEvidence) -> list[CheckFinding]:
    if not evidence.packed:
        return _unpacked(evidence)
    wrong: dict[str, list[tuple[RankLocation, FieldProblem]]] = {}
    for item in evidence.params_seen:
        for problem in form_problems(item.params, evidence.cell.config.style, item.device, evidence.layout.cp):
            wrong.setdefault(problem.field, []).extend((place, problem) for place in item.places)
    return [_finding(field, places) for field, places in wrong.items()]


def _finding(field: str, wrong: list[tuple[RankLocation, FieldProblem]]) -> CheckFinding:
    first, where = fold([place for place, _ in wrong])
    problem = next(problem for place, problem in wrong if place == first)
    name = f"{field} of {problem.tensor}" if problem.tensor else _NAMES.get(field, field)
    more = sorted({item.tensor for place, item in wrong if place == first} - {problem.tensor, ""})
    name += f" (and of {', '.join(more)})" if more else ""
    return CheckFinding(
        fault_class=fault_classes.FORM,
        message=f"{unequal(name, problem.measured, problem.expected)}, at {first}{extent(where)}",
        where={**where, "field": field, **({"tensor": problem.tensor} if problem.tensor else {})},
        measured=problem.measured,
        bound=problem.expected,
    )


def _unpacked(evidence: CellEvidence) -> list[CheckFinding]:
    places = [observation.place for observation in evidence.observations if observation.params is not None]
    if not places:
        return []
    first, where = fold(places)
    return [
        CheckFinding(
            fault_class=fault_classes.PARAMS_UNPACKED,
            message=f"packed params in an unpacked run at {first}{extent(where)}",
            where=where,
            measured="packed params",
            bound="none",
        )
    ]
