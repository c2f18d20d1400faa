"""How much evidence a verdict rests on, what its numbers are compared with, and what they are not compared with."""

from __future__ import annotations

from collections.abc import Iterator

from harness.core.run.report import Weight
from harness.core.text import counted
from harness.core.tolerances import ACCEPTS_NONE, Bound
from harness.features.optimizer import checks
from harness.judge.evidence.cell_evidence import CellEvidence

_AMPLIFIED = "compared with nothing, since rounding decides it, as two trainings of the {} show"
_SMALLEST = Bound(value=0.0)


def weight_of(evidence: CellEvidence) -> Weight:
    """Return the amount of evidence present, complete or not."""
    whole = len(evidence.records) == evidence.layout.world_size
    steps = [
        step for step in evidence.steps if sum(1 for _ in evidence.step_records(step)) == evidence.layout.world_size
    ]
    timed = any(record.timings for record in evidence.records.values())
    has_leg = evidence.cell.config.trained_by_harness  # upstream's own trainer fetches its batches while it trains
    fetched = has_leg and whole and all(record.batches or record.steps for record in evidence.records.values())
    return Weight(
        records=len(evidence.records),
        legs=int(fetched) + bool(steps) + len(evidence.legs) + timed,
        steps=len(steps),
        numbers=sum(scan.numbers for scan in evidence.scans.values()),
        reference=_references(evidence),
        not_compared=not_compared(evidence),
        not_read=sorted({name for record in evidence.records.values() for name in record.not_read}),
        smallest_seen=dict(_smallest_seen(evidence)),
    )


def _smallest_seen(evidence: CellEvidence) -> Iterator[tuple[str, float]]:
    """Yield (quantity, bound of its relative error at step 0) of what is compared with the reference."""
    if evidence.reference is None or not evidence.first_step_whole or 0 not in evidence.steps:
        return
    bounds, whole = evidence.tolerances, evidence.same_rows
    names = ["document_loss", "step_loss", *(["grad_norm"] if whole else [])]
    names += ["activation"] if evidence.fingerprinted else []
    names += ["parameter_gradient"] if evidence.fingerprinted and whole else []
    named_bounds = [(name, getattr(bounds, name)) for name in names]
    if evidence.fingerprinted and whole:
        named_bounds += [(kind.field, kind.bound) for kind in checks.kinds(evidence)]
    yield from ((name, bound.value) for name, bound in named_bounds if bound.unit == "relative")


def _references(evidence: CellEvidence) -> str:
    """Return what the numbers of a cell are compared with, and after a resume if that is something else."""
    own, later = (_reference(part) if part is not None else "" for part in (evidence, evidence.resumed))
    return f"{own}; after the resume {later}" if later not in ("", own) else own


def _reference(evidence: CellEvidence) -> str:
    """Return what the numbers of a part are compared with, and if it is not the oracle, why."""
    if not any(record.steps for record in evidence.records.values()):
        return ""
    if evidence.by_oracle:
        return "the oracle"
    why = f", since the oracle does not model {evidence.oracle.not_modelled}" if evidence.oracle else ""
    return f"the control{why}" if evidence.control else ""


def not_compared(evidence: CellEvidence) -> str:
    """Return which numbers are compared with nothing, also after a resume, and why; '' if none, or without a reference.

    Every report says it of the numerics lane.
    """
    later = not_compared(evidence.resumed) if evidence.resumed is not None else ""
    return "; ".join(filter(None, (_not_compared(evidence), later and f"after the resume: {later}")))


def _not_compared(evidence: CellEvidence) -> str:
    reference = evidence.reference
    if reference is None or not evidence.steps:
        return ""
    if evidence.same_rows:
        return "; ".join(filter(None, (_amplified(evidence, reference), _insensitive(evidence))))
    why = "compared with nothing, since the control has other rows"
    if evidence.saved is not None:
        return f"{why}: all steps"
    later = "steps after the first" if len(evidence.steps) > 1 else "trained weights"
    return f"{why}: gradients, gradient norm, first update, {later}"


def _amplified(evidence: CellEvidence, reference: CellEvidence) -> str:
    """Return which later numbers are not compared, since training amplified rounding; '' if all are."""
    floors, parts = reference.later_noise, []
    for names, text in ((("document_loss", "step_loss"), "losses"), (("grad_norm",), "gradient norms")):
        for step in evidence.steps:
            lost = next((name for name in names if evidence.bound(name, step) is None), None)
            if lost is not None:
                parts.append(f"{text} from step {step} on ({floors[lost][step].value:.2g})")
                break
    for what, text in (("change", "by the first update"), ("trained", "over all steps")):
        weights = sum(1 for name in evidence.updates if evidence.weight_bound(what, name, _SMALLEST) is None)
        if weights:
            parts.append(f"the change of {counted(weights, 'parameter')} {text}")
    return f"{_AMPLIFIED.format(evidence.origin)}: {', '.join(parts)}" if parts else ""


def _insensitive(evidence: CellEvidence) -> str:
    """Return which updates are not compared: gradients may differ so far that their bound would accept no update."""
    gradient = evidence.tolerances.parameter_gradient
    if not evidence.fingerprinted or gradient.unit == "absolute":
        return ""
    updates = {"second_moment": "second moments", "change": "the first update"}
    compared = {kind.field for kind in checks.kinds(evidence)}
    parts = [text for name, text in updates.items() if name not in compared]
    parts += ["the change over all steps"] if checks.bound_of(evidence).value >= ACCEPTS_NONE else []
    why = f"compared with nothing, since gradients may differ by {gradient.value:.2g} and any update would pass"
    return f"{why}: {', '.join(parts)}" if parts else ""
