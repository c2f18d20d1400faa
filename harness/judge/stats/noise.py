"""The noise floor of a dtype: how far a control differs from itself under changes that must not matter. Pure.

The control runs step 0 again with its documents in another order, and with every weight moved by one machine epsilon
of the compute dtype (tolerance by perturbation: TTrace, arXiv 2506.09280). Bounds are a multiple of the largest
difference that this makes (core/tolerances.py).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

from harness.core.cell.canary_legs import NOISE_LEGS
from harness.core.run.records import LegSeen, RankRecord
from harness.core.tolerances import Bound, NoiseFloor
from harness.judge.stats.distance import distance, fingerprint_distance

_RELATIVE = Bound(value=0.0)


def noise_floors(records: Mapping[int, RankRecord]) -> dict[str, NoiseFloor]:
    """Name of a bound -> the largest difference over the noise legs; empty if the cell ran none.

    Differences that are not finite are left out: `finiteness` reports them.
    """
    if len(records) != 1:
        return {}
    [record] = records.values()
    legs = [leg for leg in record.legs if leg.leg in NOISE_LEGS]
    if not legs or not record.steps:
        return {}
    floors: dict[str, NoiseFloor] = {}
    where = _where(record)
    for leg in legs:
        for name, value in _differences(record, leg):
            if math.isfinite(value) and (name not in floors or value > floors[name].value):
                floors[name] = NoiseFloor(value=value, by=NOISE_LEGS[leg.leg] + where)
    return floors


def _where(record: RankRecord) -> str:
    """The attention kernel and device of the measurement: other kernels round differently."""
    facts = record.environment
    return f"; {facts['attention']} on {facts['device']}" if {"attention", "device"} <= facts.keys() else ""


def _differences(record: RankRecord, leg: LegSeen) -> Iterator[tuple[str, float]]:
    """(name of a bound, relative difference) of everything that step 0 and the leg both have."""
    step = record.steps[0]
    losses = [
        (leg.documents[document].loss_sum, loss.loss_sum)
        for document, loss in step.documents.items()
        if document in leg.documents
    ]
    for measured, expected in losses:
        value = distance(measured, expected, _RELATIVE)
        yield "document_loss", value
        yield "repeated_document", value
    yield "step_loss", _sum_difference(losses)
    found_gradients = {seen.name: seen.gradient for seen in leg.parameters}
    pairs = [(found_gradients[seen.name], seen.gradient) for seen in record.parameters if seen.name in found_gradients]
    for gradient, own in pairs:
        yield "parameter_gradient", fingerprint_distance(gradient, own)
    # The norm is the root of a sum, so it differs by half as much as the sum.
    yield "grad_norm", _sum_difference([(gradient.norm_sq, own.norm_sq) for gradient, own in pairs]) / 2
    outputs = {seen.layer: seen.documents for seen in leg.activations}
    for activation in record.activations:
        for document, fingerprint in activation.documents.items():
            found = outputs.get(activation.layer, {}).get(document)
            if found is not None:
                yield "activation", fingerprint_distance(found, fingerprint)


def _sum_difference(terms: Sequence[tuple[float, float]]) -> float:
    """Relative difference of a sum of (measured, expected) terms, as if the terms' differences had random signs.

    A single sum may differ by almost nothing by chance, so its own difference counts only if it is larger than that.
    """
    total = abs(math.fsum(right for _, right in terms))
    if not total:
        return math.nan
    walk = math.sqrt(math.fsum((found - right) ** 2 for found, right in terms))
    return max(walk, abs(math.fsum(found - right for found, right in terms))) / total
