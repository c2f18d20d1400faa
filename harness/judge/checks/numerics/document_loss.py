"""The loss of every document equals the reference's; at step 0 the first token that differs is named."""

from __future__ import annotations

import math

from harness.core.run.records import DocumentLoss
from harness.core.tolerances import Bound, looser
from harness.judge.checks.finding import CheckFinding
from harness.judge.diagnosis import boundaries, fault_classes
from harness.judge.diagnosis.boundaries import Boundaries
from harness.judge.diagnosis.document_patterns import documents_pattern
from harness.judge.diagnosis.localise import first_layer_off, first_token_off, token_boundaries
from harness.judge.diagnosis.ratios import DOCUMENTS, common_ratio, factors_of
from harness.judge.evidence.cell_evidence import CellEvidence
from harness.judge.stats.distance import beyond, bound_text, distance, stated

_NONE = DocumentLoss(loss_sum=0.0, tokens=0)


def check(evidence: CellEvidence) -> list[CheckFinding]:
    control = evidence.reference
    if control is None:
        return []
    for step in evidence.finished_steps:
        if step not in control.document_losses:
            continue
        if step and not evidence.same_rows:
            break  # different gradients have moved the weights
        if (bound := _bound(evidence, step)) is None:
            break  # rounding decides
        off = _off(evidence, control, step, bound)
        wrong = sorted(document for document, value in off.items() if beyond(value, bound))
        if wrong:
            return [_finding(evidence, control, step, wrong, off, bound)]
    return []


def _bound(evidence: CellEvidence, step: int) -> Bound | None:
    """The bound at a step: after step 0, when weights have moved, the looser of the document's and the step's."""
    at_step, of_step = evidence.bound("document_loss", step), evidence.bound("step_loss", step)
    if step == 0 or at_step is None or of_step is None:
        return at_step if step == 0 else None
    return looser(at_step, of_step)


def _losses(evidence: CellEvidence, control: CellEvidence, step: int) -> dict[int, tuple[float, float]]:
    """Document -> (loss sum, the control's loss sum); 0 where there is none."""
    losses, right = evidence.document_losses[step], control.document_losses[step]
    return {
        document: (losses.get(document, _NONE).loss_sum, right.get(document, _NONE).loss_sum)
        for document in sorted({*losses, *right})
    }


def _off(evidence: CellEvidence, control: CellEvidence, step: int, bound: Bound) -> dict[int, float]:
    """Document -> distance from the control; values that are not finite are left to `finiteness`."""
    return {
        document: distance(measured, expected, bound)
        for document, (measured, expected) in _losses(evidence, control, step).items()
        if math.isfinite(measured)
    }


def _finding(
    evidence: CellEvidence, control: CellEvidence, step: int, wrong: list[int], off: dict[int, float], bound: Bound
) -> CheckFinding:
    document = wrong[0]
    found, right = _losses(evidence, control, step)[document]
    home = evidence.homes[step].get(document)
    place = f" (micro-batch {home.micro_batch} of replica {home.dp})" if home else ""
    token = first_token_off(evidence, control, document) if step == 0 else None
    ratio = _ratio(evidence, control, step)
    # A factor common to all documents does not point to one token.
    edges = _boundaries(evidence, control, document, None if ratio else token) if step == 0 else boundaries.NOTHING
    where = {"stage": evidence.last_stage, "step": step, "document": document, "documents": wrong}
    where |= {"token": token} if token is not None else {}
    if home is not None:
        where |= {"dp": home.dp, "micro_batch": home.micro_batch}
    at = f", from token {token} on" if token is not None else ""
    named = f"; the ratio is {ratio} on all" if ratio else ""
    return CheckFinding(
        fault_class=f"{fault_classes.NORMALISATION}: {ratio}" if ratio else documents_pattern(evidence, wrong, step),
        message=f"loss sum of document {document}{place} in step {step}: {found:.9g}, "
        f"{evidence.origin} {right:.9g}, off by {off[document]:.3g} > {bound_text(bound)}{at}{named}; {len(wrong)} of "
        f"{len(off)} documents differ{edges.text}",
        where=where | ({"ratio": ratio} if ratio else {}) | edges.keys,
        measured=off[document],
        bound=stated(bound),
    )


def _boundaries(evidence: CellEvidence, control: CellEvidence, document: int, token: int | None) -> Boundaries:
    """Boundaries at the token, and the output layer if no layer before it is off."""
    layers_right = evidence.fingerprinted and first_layer_off(evidence, control) is None
    edges = boundaries.of_output() if layers_right else boundaries.NOTHING
    return edges + token_boundaries(evidence, document, token)


def _ratio(evidence: CellEvidence, control: CellEvidence, step: int) -> str | None:
    """The factor by which the losses of all documents are off, if any; documents per pack differ between documents."""
    common = factors_of(evidence, step)
    pairs = []
    for document, (found, right) in _losses(evidence, control, step).items():
        home = evidence.homes[step].get(document)
        if right and math.isfinite(found) and home is not None:
            members = len(evidence.plan[step][home.dp][home.micro_batch].batch.placed) if evidence.packed else 1
            own = {name: size for name, size in common.items() if name != DOCUMENTS}
            pairs.append((found / right, own | ({DOCUMENTS: float(members)} if members > 1 else {})))
    return common_ratio(pairs, evidence.tolerances.ratio_screen)
