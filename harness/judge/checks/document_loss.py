"""The loss of every document equals the reference's; at step 0 the first token that differs is named."""

from __future__ import annotations

import math

from harness.judge.compare import beyond, bound_text, distance
from harness.judge.evidence import CellEvidence
from harness.judge.patterns import documents_pattern
from harness.words.outcomes import Finding, Lane
from harness.words.records import DocumentLoss
from harness.words.tolerances import Bound

_NONE = DocumentLoss(loss_sum=0.0, tokens=0)


def check(evidence: CellEvidence) -> list[Finding]:
    if evidence.reference is None:
        return []
    for step in evidence.finished_steps:
        if step not in evidence.reference.document_losses:
            continue
        bound = _bound(evidence, step)
        off = _off(evidence, evidence.reference, step, bound)
        wrong = sorted(document for document, value in off.items() if beyond(value, bound))
        if wrong:
            return [_finding(evidence, evidence.reference, step, wrong, off, bound)]
    return []


def _bound(evidence: CellEvidence, step: int) -> Bound:
    """Weights have moved after step 0, so the looser of the document's and the step's bound holds there."""
    at_start, later = evidence.tolerances.document_loss, evidence.tolerances.step_loss
    return at_start if step == 0 or at_start.value >= later.value else later


def _off(evidence: CellEvidence, reference: CellEvidence, step: int, bound: Bound) -> dict[int, float]:
    """Document -> distance from the reference; values that are not finite are left to `finiteness`."""
    losses, right = evidence.document_losses[step], reference.document_losses[step]
    pairs = {
        document: (losses.get(document, _NONE).loss_sum, right.get(document, _NONE).loss_sum)
        for document in {*losses, *right}
    }
    return {
        document: distance(measured, expected, bound)
        for document, (measured, expected) in pairs.items()
        if math.isfinite(measured)
    }


def _finding(
    evidence: CellEvidence, reference: CellEvidence, step: int, wrong: list[int], off: dict[int, float], bound: Bound
) -> Finding:
    document = wrong[0]
    found = evidence.document_losses[step].get(document, _NONE).loss_sum
    right = reference.document_losses[step].get(document, _NONE).loss_sum
    token = _first_token(evidence, reference, document, bound) if step == 0 else None
    home = evidence.homes[step].get(document)
    place = f" (micro-batch {home.micro_batch} of replica {home.dp})" if home else ""
    at = f", from token {token} on" if token is not None else ""
    where = {"stage": evidence.last_stage, "step": step, "document": document, "documents": wrong}
    if home is not None:
        where |= {"dp": home.dp, "micro_batch": home.micro_batch}
    return Finding(
        lane=Lane.NUMERICS,
        check="document_loss",
        fault_class=documents_pattern(evidence, wrong, step),
        message=f"loss sum of document {document}{place} in step {step}: {found:.9g}, reference {right:.9g}, off by "
        f"{off[document]:.3g} > {bound_text(bound)}{at}; {len(wrong)} of {len(off)} documents differ",
        where=where | ({"token": token} if token is not None else {}),
        measured=off[document],
        bound=bound.value,
    )


def _first_token(evidence: CellEvidence, reference: CellEvidence, document: int, bound: Bound) -> int | None:
    """Lowest position of the document whose loss differs by more than the bound; ranks record only so many tokens."""
    measured, expected = evidence.token_losses, reference.token_losses
    for position in sorted(position for owner, position in expected if owner == document):
        found, right = measured.get((document, position)), expected[(document, position)]
        if found is not None and math.isfinite(found) and beyond(distance(found, right, bound), bound):
            return position
    return None
