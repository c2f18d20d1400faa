"""Every value of the packed params equals the plan of the data path, on every rank, layer and micro-batch."""

from __future__ import annotations

from typing import NamedTuple

from harness.core.packing.fields import LONGEST, OFFSETS, PADDED
from harness.core.run.records import SeenParams
from harness.core.text import counted
from harness.judge.checks.finding import CheckFinding
from harness.judge.diagnosis import fault_classes
from harness.judge.evidence.cell_evidence import CellEvidence
from harness.judge.evidence.packed_params import (
    FieldProblem,
    ghosts,
    missing_class,
    pairing,
    problems_of,
    structure,
)
from harness.judge.evidence.truth import Truth
from harness.judge.locations import RankLocation, extent, fold, unequal

GROUPS = (OFFSETS, PADDED, LONGEST)  # one finding per group: q and kv go wrong together


class _WrongValue(NamedTuple):
    place: RankLocation
    problem: FieldProblem
    truth: Truth
    params: SeenParams


def check(evidence: CellEvidence) -> list[CheckFinding]:
    wrong: dict[tuple[str, ...], list[_WrongValue]] = {}
    for item in evidence.params_seen:
        problems = problems_of(item)
        for group in GROUPS:
            found = next((problem for problem in problems if problem.field in group), None)
            if found is not None:
                wrong.setdefault(group, []).extend(
                    _WrongValue(place, found, item.truth, item.params) for place in item.places
                )
    return [_finding(evidence, wrong[group]) for group in GROUPS if group in wrong]


def _finding(evidence: CellEvidence, wrong: list[_WrongValue]) -> CheckFinding:
    places = [item.place for item in wrong]
    first, where = fold(places)
    seen = next(item for item in wrong if item.place == first)
    problem = seen.problem
    stale = _other_micro_batch(evidence, first, problem)
    notes = [f"these are the values of micro-batch {stale}"] if stale is not None else _notes(evidence, seen)
    fault_class = fault_classes.STALE if stale is not None else _fault_class(seen, missing_class(evidence, places))
    return CheckFinding(
        fault_class=fault_class,
        message=f"{unequal(problem.field, problem.measured, problem.expected)}, at {first}{extent(where)}"
        f"{''.join('; ' + note for note in notes)}",
        where={**where, "field": problem.field},
        measured=problem.measured,
        bound=problem.expected,
    )


def _other_micro_batch(evidence: CellEvidence, place: RankLocation, problem: FieldProblem) -> int | None:
    """Number of another micro-batch of the step whose plan has the measured offsets.

    The ends of the right offsets alone are those of a row with its boundaries lost, whatever another row has.
    """
    if not isinstance(problem.measured, list) or _merged(problem):
        return None
    for number, truth in enumerate(evidence.plan[place.step][place.at.dp]):
        expected = getattr(truth.params, problem.field, None)
        if number != place.micro_batch and expected is not None and list(expected) == problem.measured:
            return number
    return None


def _notes(evidence: CellEvidence, seen: _WrongValue) -> list[str]:
    """Defects of the offsets themselves, and contradictions between real and padded ones."""
    problem, truth = seen.problem, seen.truth
    if not isinstance(problem.measured, list):
        return []
    if count := _ghosts(problem):
        return [f"{counted(count, 'empty segment')} that no document has"]
    if _merged(problem):
        return ["the boundaries between documents are lost, so that they are one"]
    style, notes = evidence.cell.config.style, []
    physical = problem.field in PADDED or (truth.params and truth.params.cu_seqlens_q_padded) is None
    if physical:
        notes += structure(problem.measured, length=truth.batch.slots, multiple=style.document_multiple)
    for kind in ("q", "kv"):
        real, padded = getattr(seen.params, f"cu_seqlens_{kind}"), getattr(seen.params, f"cu_seqlens_{kind}_padded")
        if problem.field.startswith(f"cu_seqlens_{kind}") and real is not None and padded is not None:
            notes += pairing(real, padded)
    return notes


def _merged(problem: FieldProblem) -> bool:
    """Whether the measured offsets are the ends of the right ones."""
    expected = list(problem.expected or ()) if isinstance(problem.expected, list | tuple) else []
    return len(expected) > 2 and problem.measured == [expected[0], expected[-1]]


def _ghosts(problem: FieldProblem) -> int:
    both = isinstance(problem.measured, list) and isinstance(problem.expected, list)
    return ghosts(problem.measured, problem.expected) if both else 0


def _fault_class(seen: _WrongValue, missing: str) -> str:
    """The fault class of a wrong value; `missing` is the one for absent offsets."""
    problem, params = seen.problem, seen.truth.params
    if _ghosts(problem):
        return fault_classes.GHOSTS
    if problem.field in OFFSETS and problem.measured is None:
        return missing
    if problem.field in LONGEST or params is None:
        return fault_classes.MAX_SEQLEN
    real, padded = params.cu_seqlens_q, params.cu_seqlens_q_padded
    if padded is None:
        return fault_classes.CU_SEQLENS
    swapped = problem.measured == list(padded if problem.field in OFFSETS else real)
    return fault_classes.REAL_PADDED if swapped else fault_classes.CU_SEQLENS
