"""Every value of the packed params equals the plan of the data path, on every rank, layer and micro-batch."""

from __future__ import annotations

from harness.judge import fault_classes
from harness.judge.evidence import CellEvidence, Truth
from harness.judge.params import LONGEST, OFFSETS, PADDED, Wrong, judged, missing_class, structure
from harness.judge.places import Place, fold, listed, reach
from harness.words.outcomes import Finding, Lane

GROUPS = (OFFSETS, PADDED, LONGEST)  # one finding per group: q and kv go wrong together


def check(evidence: CellEvidence) -> list[Finding]:
    wrong: dict[tuple[str, ...], list[tuple[Place, Wrong, Truth]]] = {}
    for sighting, _, truth, problems in judged(evidence):
        for group in GROUPS:
            found = next((problem for problem in problems if problem.field in group), None)
            if found is not None:
                wrong.setdefault(group, []).append((sighting.place, found, truth))
    return [_finding(evidence, wrong[group]) for group in GROUPS if group in wrong]


def _finding(evidence: CellEvidence, wrong: list[tuple[Place, Wrong, Truth]]) -> Finding:
    places = [place for place, _, _ in wrong]
    first, where = fold(places)
    problem, truth = next((problem, truth) for place, problem, truth in wrong if place == first)
    missing = missing_class(evidence, places)
    stale = _other_micro_batch(evidence, first, problem)
    notes = [f"these are the values of micro-batch {stale}"] if stale is not None else []
    if isinstance(problem.measured, list) and (truth.params and truth.params.cu_seqlens_q_padded) is None:
        multiple = evidence.cell.config.style.document_multiple
        notes += structure(problem.measured, length=truth.batch.slots, multiple=multiple)
    return Finding(
        lane=Lane.METADATA,
        check="params_agree_plan",
        fault_class=fault_classes.STALE if stale is not None else _fault_class(problem, truth, missing),
        message=f"{problem.field} is {_shown(problem.measured)}, expected {_shown(problem.expected)}, at {first}"
        f"{reach(where)}{''.join('; ' + note for note in notes)}",
        where={**where, "field": problem.field},
        measured=problem.measured,
        bound=problem.expected,
    )


def _shown(value: object) -> str:
    return f"[{listed(value, 16)}]" if isinstance(value, list) else str(value)


def _other_micro_batch(evidence: CellEvidence, place: Place, problem: Wrong) -> int | None:
    """Number of another micro-batch of the step whose plan has the measured offsets."""
    if not isinstance(problem.measured, list):
        return None
    for number, truth in enumerate(evidence.plan[place.step][place.at.dp]):
        expected = getattr(truth.params, problem.field, None)
        if number != place.micro_batch and expected is not None and list(expected) == problem.measured:
            return number
    return None


def _fault_class(problem: Wrong, truth: Truth, missing: str) -> str:
    """`missing` is the class of offsets that are not there."""
    params = truth.params
    if problem.field in OFFSETS and problem.measured is None:
        return missing
    if problem.field in LONGEST or params is None:
        return fault_classes.MAX_SEQLEN
    real, padded = params.cu_seqlens_q, params.cu_seqlens_q_padded
    if padded is None:
        return fault_classes.CU_SEQLENS
    swapped = problem.measured == list(padded if problem.field in OFFSETS else real)
    return fault_classes.REAL_PADDED if swapped else fault_classes.CU_SEQLENS
