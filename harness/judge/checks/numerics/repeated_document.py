"""A document that repeats another has the same loss, wherever each is packed; needs no control.

Not where experts drop tokens beyond their capacity, which depends on the other documents of a row.
"""

from __future__ import annotations

import math

from harness.judge.checks.finding import CheckFinding
from harness.judge.diagnosis.document_patterns import documents_pattern
from harness.judge.evidence.cell_evidence import CellEvidence
from harness.judge.stats.distance import beyond, bound_text, distance, stated


def check(evidence: CellEvidence) -> list[CheckFinding]:
    if evidence.cell.config.model.drops:
        return []
    for step in evidence.finished_steps:
        losses = evidence.document_losses[step]
        bound = evidence.own_bound("repeated_document", step)
        for copy, original in _copies(evidence, step):
            if copy not in losses or original not in losses:
                continue  # token_count names absent documents
            found, right = losses[copy].loss_sum, losses[original].loss_sum
            if math.isfinite(found) and math.isfinite(right) and beyond(distance(found, right, bound), bound):
                return [_finding(evidence, step, copy, original)]
    return []


def _copies(evidence: CellEvidence, step: int) -> list[tuple[int, int]]:
    """(copy, original) of the step's documents."""
    documents = evidence.cell.config.documents_of(step)
    return [(item.index, item.copy_of) for item in documents if item.copy_of is not None]


def _finding(evidence: CellEvidence, step: int, copy: int, original: int) -> CheckFinding:
    bound = evidence.own_bound("repeated_document", step)
    losses = evidence.document_losses[step]
    found, right = losses[copy].loss_sum, losses[original].loss_sum
    measured = distance(found, right, bound)
    return CheckFinding(
        fault_class=documents_pattern(evidence, [copy], step),
        message=f"document {copy} repeats document {original}, but in step {step} their loss sums are {found:.9g} and "
        f"{right:.9g}, off by {measured:.3g} > {bound_text(bound)}",
        where={"stage": evidence.last_stage, "step": step, "document": copy, "original": original},
        measured=measured,
        bound=stated(bound),
    )
