"""Packed params have the form that kernels read: int32, 1-D, max_seqlen a Python int, format thd; none if unpacked."""

from __future__ import annotations

from harness.judge import fault_classes
from harness.judge.evidence import CellEvidence
from harness.judge.params import Wrong, form_problems, judged
from harness.judge.places import Place, fold, reach
from harness.words.outcomes import Finding, Lane


def check(evidence: CellEvidence) -> list[Finding]:
    if not evidence.packed:
        return _unpacked(evidence)
    wrong: dict[str, list[tuple[Place, Wrong]]] = {}
    known: dict[int, list[Wrong]] = {}
    for sighting, seen, _, _ in judged(evidence):
        if id(seen) not in known:
            known[id(seen)] = form_problems(seen, evidence.cell.config.style)
        for problem in known[id(seen)]:
            wrong.setdefault(problem.field, []).append((sighting.place, problem))
    return [_finding(field, places) for field, places in wrong.items()]


def _finding(field: str, wrong: list[tuple[Place, Wrong]]) -> Finding:
    first, where = fold([place for place, _ in wrong])
    problem = next(problem for place, problem in wrong if place == first)
    names = {"dtype": "cu_seqlens dtype", "shape": "cu_seqlens shape", "max_seqlen_type": "type of max_seqlen"}
    return Finding(
        lane=Lane.METADATA,
        check="params_form",
        fault_class=fault_classes.FORM,
        message=f"{names.get(field, field)} is {problem.measured}, expected {problem.expected}, "
        f"at {first}{reach(where)}",
        where={**where, "field": field},
        measured=problem.measured,
        bound=problem.expected,
    )


def _unpacked(evidence: CellEvidence) -> list[Finding]:
    places = [sighting.place for sighting in evidence.sightings if sighting.params is not None]
    if not places:
        return []
    first, where = fold(places)
    return [
        Finding(
            lane=Lane.METADATA,
            check="params_form",
            fault_class=fault_classes.PARAMS_UNPACKED,
            message=f"packed params in an unpacked run at {first}{reach(where)}",
            where=where,
            measured="packed params",
            bound="none",
        )
    ]
