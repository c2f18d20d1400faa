"""Every layer's output for every document (step 0) equals the reference's; names the first that differs."""

from __future__ import annotations

import math

from harness.judge.checks.finding import CheckFinding
from harness.judge.diagnosis import boundaries, fault_classes
from harness.judge.diagnosis.document_patterns import documents_pattern
from harness.judge.diagnosis.localise import LayerOff, first_layer_off, first_token_off, token_boundaries
from harness.judge.evidence.cell_evidence import CellEvidence
from harness.judge.stats.distance import bound_text, stated


def check(evidence: CellEvidence) -> list[CheckFinding]:
    if evidence.reference is None or not evidence.fingerprinted:
        return []
    found = first_layer_off(evidence, evidence.reference)
    return [] if found is None else [_finding(evidence, evidence.reference, found)]


def _finding(evidence: CellEvidence, control: CellEvidence, found: LayerOff) -> CheckFinding:
    bound, layout, layers = evidence.tolerances.activation, evidence.layout, evidence.cell.config.model.spread
    layer, wrong, off = found
    document = wrong[0]
    token = first_token_off(evidence, control, document)
    edges = boundaries.of_layer(layout, layers, layer) + token_boundaries(evidence, document, token)
    stage = layout.stage_of_layer(layers, layer) if layer else 0
    value = "not recorded" if math.isinf(off[document]) else f"off by {off[document]:.3g} > {bound_text(bound)}"
    where = {"stage": stage, "layer": layer, "step": 0, "document": document, "documents": wrong}
    where |= {"token": token} if token is not None else {}
    home = evidence.homes[0].get(document)
    if home is not None:
        where |= {"dp": home.dp, "micro_batch": home.micro_batch}
    after = f"layer {layer} on stage {stage}" if layer else "the embedding on stage 0"
    at = f" from token {token} on" if token is not None else ""
    return CheckFinding(
        fault_class=_fault_class(evidence, found),
        message=f"activations first differ after {after}: document {document}{at} {value}; "
        f"{len(wrong)} of {len(off)} documents differ there{edges.text}",
        where=where | edges.keys,
        measured=off[document],
        bound=stated(bound),
    )


def _fault_class(evidence: CellEvidence, found: LayerOff) -> str:
    pattern = documents_pattern(evidence, found.documents, 0)
    if found.layer == 0 and pattern != fault_classes.TRUNCATION:
        return fault_classes.CP_LAYOUT if evidence.layout.cp > 1 else fault_classes.TOKEN_CONTENT
    hop = boundaries.hop_before(evidence.layout, evidence.cell.config.model.spread, found.layer)
    return fault_classes.STAGE_BOUNDARY if hop and pattern == fault_classes.UNKNOWN else pattern
