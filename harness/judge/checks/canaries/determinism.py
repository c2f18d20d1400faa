"""Canary determinism: step 0, run again, gives the same activations, losses and gradients; needs no control."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from harness.core.run.tensor_records import Fingerprint
from harness.core.tolerances import Bound
from harness.judge.checks.canaries.shared import changed_losses, exact_on_cpu
from harness.judge.checks.finding import CheckFinding
from harness.judge.diagnosis import fault_classes
from harness.judge.evidence.cell_evidence import CellEvidence
from harness.judge.evidence.leg_evidence import LegEvidence
from harness.judge.stats.distance import beyond, bound_text, fingerprint_distance, finite, stated
from harness.judge.stats.noise import least_norms

_Difference = tuple[str, dict[str, Any], float, Bound]


def check(evidence: CellEvidence) -> list[CheckFinding]:
    leg = evidence.legs.get("determinism")
    if leg is None or not evidence.fingerprinted:
        return []
    differences = [*_activations(evidence, leg), *_losses(evidence, leg), *_gradients(evidence, leg)]
    if not differences:
        return []
    what, where, off, bound = differences[0]
    return [
        CheckFinding(
            fault_class=fault_classes.DETERMINISM,
            message=f"{what} changes when step 0 runs again with the same weights and documents, off by {off:.3g} > "
            f"{bound_text(bound)}; {len(differences)} values differ",
            where=where,
            measured=off,
            bound=stated(bound),
        )
    ]


def _activations(evidence: CellEvidence, leg: LegEvidence) -> Iterator[_Difference]:
    bound = exact_on_cpu(evidence, evidence.own.activation, same_tokens=True)
    found = []
    for rank, record in evidence.records.items():
        again = {item.layer: item.documents for item in leg.seen[rank].activations}
        for seen in record.activations:
            for document, old in seen.documents.items():
                new = again.get(seen.layer, {}).get(document)
                off = _excess(new, old, bound)
                if off:
                    what = f"the activation of document {document} after layer {seen.layer} on rank {rank}"
                    found.append((seen.layer, what, leg.at_rank(rank, layer=seen.layer, document=document), off))
    for _, what, where, off in sorted(found, key=lambda item: item[0]):
        yield what, where, off, bound


def _losses(evidence: CellEvidence, leg: LegEvidence) -> Iterator[_Difference]:
    bound = exact_on_cpu(evidence, evidence.own.document_loss, same_tokens=True)
    for document, off in changed_losses(evidence, leg, bound).items():
        where = leg.positions[document].where("determinism", evidence.last_stage) | {"document": document}
        yield f"the loss of document {document}", where, off, bound


def _gradients(evidence: CellEvidence, leg: LegEvidence) -> Iterator[_Difference]:
    bound = exact_on_cpu(evidence, evidence.own.parameter_gradient, same_tokens=True)
    least = least_norms(evidence.own, (one.fingerprint for one in evidence.gradients.values()))
    for rank, record in evidence.records.items():
        again = {item.name: item.gradient for item in leg.seen[rank].parameters}
        for seen in record.parameters:
            off = _excess(again.get(seen.name), seen.gradient, bound, least.get(seen.name, 0.0))
            if off:
                yield f"the gradient of {seen.name} on rank {rank}", leg.at_rank(rank, parameter=seen.name), off, bound


def _excess(new: Fingerprint | None, old: Fingerprint, bound: Bound, least: float = 0.0) -> float:
    """The distance if it exceeds the bound, else 0; also 0 for absent or non-finite values, which other checks cover.

    Under an exact bound any difference of the fingerprints counts, though the estimated distance may round to 0.
    """
    if new is None or not finite(new) or not finite(old):
        return 0.0
    off = fingerprint_distance(new, old, least_norm=least)
    if bound.value == 0:
        return off or 5e-324 if new != old else 0.0
    return off if beyond(off, bound) else 0.0
