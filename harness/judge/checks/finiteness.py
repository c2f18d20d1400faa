"""No NaN or infinity in activations, losses, gradient norms or gradients; later checks leave such values out."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from harness.judge import fault_classes
from harness.judge.compare import exactly, finite
from harness.judge.evidence import CellEvidence
from harness.words.outcomes import Finding, Lane


def check(evidence: CellEvidence) -> list[Finding]:
    bad = list(_bad(evidence))
    if not bad:
        return []
    what, measured, where = bad[0]
    more = f"; {len(bad) - 1} further values are not finite" if len(bad) > 1 else ""
    return [
        Finding(
            lane=Lane.NUMERICS,
            check="finiteness",
            fault_class=fault_classes.NON_FINITE,
            message=f"{what} is {measured}{more}",
            where=where,
            measured=measured,
            bound=exactly("finite", "sums of finite numbers are finite"),
        )
    ]


def _bad(evidence: CellEvidence) -> Iterator[tuple[str, float, dict[str, Any]]]:
    """In the order in which a training step computes them."""
    layout, layers = evidence.layout, evidence.cell.config.model.layers
    last = evidence.last_stage
    for layer, documents in evidence.activations.items():
        stage = layout.stage_of_layer(layers, layer) if layer else 0
        for document, fingerprint in sorted(documents.items()):
            if not finite(fingerprint):
                where = {"stage": stage, "layer": layer, "document": document, "step": 0}
                yield f"the activation of document {document} after layer {layer}", fingerprint.norm_sq, where
    for step, losses in evidence.document_losses.items():
        for document, loss in sorted(losses.items()):
            if not math.isfinite(loss.loss_sum):
                where = {"stage": last, "document": document, "step": step}
                yield f"the loss of document {document} in step {step}", loss.loss_sum, where
        yield from _step_values(evidence, step)
    for name, gradient in evidence.gradients.items():
        if not finite(gradient.fingerprint):
            where = dict[str, Any](stage=gradient.stage, parameter=name, step=0)
            yield f"the gradient of {name}", gradient.fingerprint.norm_sq, where


def _step_values(evidence: CellEvidence, step: int) -> Iterator[tuple[str, float, dict[str, Any]]]:
    for record, seen in evidence.step_records(step):
        for what, value in (("the loss", seen.loss_sum), ("the gradient norm", seen.grad_norm)):
            if value is not None and not math.isfinite(value):
                where = {"stage": record.place.pp, "rank": record.rank, "step": step}
                yield f"{what} of step {step} on rank {record.rank}", value, where
