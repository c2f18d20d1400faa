"""Every layer's output for every document (step 0) equals the reference's; names the first that differs."""

from __future__ import annotations

import math

from harness.judge import fault_classes
from harness.judge.compare import beyond, bound_text, fingerprint_distance, finite
from harness.judge.evidence import CellEvidence
from harness.judge.patterns import documents_pattern, stage_text
from harness.words.outcomes import Finding, Lane


def check(evidence: CellEvidence) -> list[Finding]:
    if evidence.reference is None or not evidence.first_step_whole:
        return []
    layers = evidence.cell.config.model.layers
    for layer in range(layers + 1):
        off = _off(evidence, evidence.reference, layer)
        wrong = sorted(document for document, value in off.items() if beyond(value, evidence.tolerances.activation))
        if wrong:
            return [_finding(evidence, layer, wrong, off)]
    return []


def _off(evidence: CellEvidence, reference: CellEvidence, layer: int) -> dict[int, float]:
    """Document -> distance; infinite where a fingerprint is missing on either side."""
    measured, expected = evidence.activations.get(layer, {}), reference.activations.get(layer, {})
    off = {}
    for document in sorted({*measured, *expected, *evidence.homes[0]}):
        found, right = measured.get(document), expected.get(document)
        if found is None or right is None:
            off[document] = math.inf
        elif finite(found):
            off[document] = fingerprint_distance(found, right)
    return off


def _finding(evidence: CellEvidence, layer: int, wrong: list[int], off: dict[int, float]) -> Finding:
    bound = evidence.tolerances.activation
    document = wrong[0]
    stage, words, boundary = stage_text(evidence.layout, evidence.cell.config.model.layers, layer)
    value = "not recorded" if math.isinf(off[document]) else f"off by {off[document]:.3g} > {bound_text(bound)}"
    pattern = documents_pattern(evidence, wrong, 0)
    if layer == 0 and pattern != fault_classes.TRUNCATION:
        pattern = fault_classes.CP_LAYOUT if evidence.layout.cp > 1 else fault_classes.TOKEN_CONTENT
    elif boundary and pattern == fault_classes.UNKNOWN:
        pattern = fault_classes.STAGE_BOUNDARY
    home = evidence.homes[0].get(document)
    where = {"stage": stage, "layer": layer, "step": 0, "document": document, "documents": wrong}
    if home is not None:
        where |= {"dp": home.dp, "micro_batch": home.micro_batch}
    return Finding(
        lane=Lane.NUMERICS,
        check="activations",
        fault_class=pattern,
        message=f"activations first differ after {words}: document {document} {value}; "
        f"{len(wrong)} of {len(off)} documents differ there",
        where=where,
        measured=off[document],
        bound=bound.value,
    )
