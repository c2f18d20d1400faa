"""The gradient norm before clipping equals the reference's on every rank; a recognised ratio is named.

A control with other rows in its micro-batches has other gradients. Then the ranks are compared with each other: each
holds the norm over all ranks.
"""

from __future__ import annotations

import math

from harness.judge.checks.finding import CheckFinding
from harness.judge.diagnosis import fault_classes
from harness.judge.diagnosis.ratios import factors_of, ratio_name
from harness.judge.evidence.cell_evidence import CellEvidence
from harness.judge.stats.distance import beyond, bound_text, distance, exactly, stated


def check(evidence: CellEvidence) -> list[CheckFinding]:
    if evidence.reference is None:
        return []
    if evidence.same_rows:
        return _against(evidence, evidence.reference, evidence.origin)
    return _against(evidence, evidence, "the first rank's")


def _against(evidence: CellEvidence, other: CellEvidence, origin: str) -> list[CheckFinding]:
    wrong = []
    norms = grad_norms(other)
    for step, right in ((step, norms[step]) for step in evidence.steps if step in norms):
        bound = evidence.own_bound("grad_norm", step) if other is evidence else evidence.bound("grad_norm", step)
        if bound is None:
            break  # rounding decides
        seen_any = False
        for record, seen in evidence.step_records(step):
            found = seen.grad_norm
            seen_any |= found is not None
            if found is not None and math.isfinite(found) and beyond(distance(found, right, bound), bound):
                wrong.append((step, record.rank, record.place.pp, found, right, bound))
        if step in evidence.finished_steps and not seen_any:
            return [_missing(step)]
    if not wrong:
        return []
    step, rank, stage, found, right, bound = wrong[0]
    differing = sorted({item[0] for item in wrong})
    ratio = ratio_name(found / right, factors_of(evidence, step), evidence.tolerances.ratio_screen) if right else None
    measured = distance(found, right, bound)
    named = f"; the ratio is {ratio}" if ratio else f"; the ratio is {found / right:.4g}" if right else ""
    return [
        CheckFinding(
            fault_class=f"{fault_classes.NORMALISATION}: {ratio}" if ratio else fault_classes.GRADIENT_REDUCTION,
            message=f"gradient norm of step {step} on rank {rank}: {found:.9g}, {origin} {right:.9g}, off by "
            f"{measured:.3g} > {bound_text(bound)}{named}; {len(differing)} of {len(evidence.steps)} steps differ",
            where={"stage": stage, "rank": rank, "step": step} | ({"ratio": ratio} if ratio else {}),
            measured=measured,
            bound=stated(bound),
        )
    ]


def _missing(step: int) -> CheckFinding:
    return CheckFinding(
        fault_class=fault_classes.UNKNOWN,
        message=f"no rank recorded a gradient norm in step {step}",
        where={"step": step},
        measured=None,
        bound=exactly("recorded", "every finished step has one"),
    )


def grad_norms(evidence: CellEvidence) -> dict[int, float]:
    """Step -> gradient norm of the first rank that recorded one."""
    norms: dict[int, float] = {}
    for step in evidence.finished_steps:
        for _, seen in evidence.step_records(step):
            if seen.grad_norm is not None:
                norms.setdefault(step, seen.grad_norm)
    return norms
