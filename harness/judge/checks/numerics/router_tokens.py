"""The number of real tokens of every expert of every layer (step 0) equals the reference's, exactly, where that chooses
by itself.
"""

from __future__ import annotations

from harness.judge.checks.finding import CheckFinding
from harness.judge.diagnosis import fault_classes
from harness.judge.evidence.cell_evidence import CellEvidence
from harness.judge.evidence.moe_router import RouterWhole, added, routers
from harness.judge.locations import in_short


def check(evidence: CellEvidence) -> list[CheckFinding]:
    control = evidence.reference
    if control is None or not evidence.first_step_whole or evidence.cell.config.model.moe is None:
        return []
    if evidence.oracle and evidence.oracle.record and evidence.oracle.record.followed:
        return []  # it has the ranks' own choices: `router_choice`
    found, right = _per_layer(routers(evidence)), _per_layer(routers(control))
    layers = evidence.cell.config.model.layers
    if not evidence.same_rows:  # prediction layers differ: in other rows, other tokens follow the end of a document
        right = {layer: expected for layer, expected in right.items() if layer <= layers}
    for layer, expected in right.items():
        measured = found.get(layer, [])
        if measured != expected:
            stage = evidence.layout.stage_of_layer(layers, layer) if layer <= layers else evidence.last_stage
            return [_finding(layer, stage, measured, expected, evidence.origin)]
    return []


def _per_layer(wholes: list[RouterWhole]) -> dict[int, list[int]]:
    """Layer -> real tokens per expert over all micro-batches."""
    layers: dict[int, list[int]] = {}
    for router in wholes:
        share = router.real[0]
        for row in router.real[1:]:
            share = added(share, row)
        known = layers.get(router.layer, [0] * len(share.counts))
        layers[router.layer] = [a + b for a, b in zip(known, share.counts)]
    return layers


def _finding(layer: int, stage: int, measured: list[int], expected: list[int], origin: str) -> CheckFinding:
    experts = [n for n, pair in enumerate(zip(measured, expected)) if pair[0] != pair[1]]
    return CheckFinding(
        fault_class=fault_classes.ROUTER,
        message=f"real tokens per expert in layer {layer}: {in_short(measured, expected, origin)}",
        where={"stage": stage, "layer": layer, "step": 0, "experts": experts},
        measured=measured,
        bound=expected,
    )
