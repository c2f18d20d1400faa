"""The noise floor of a dtype: how far a control differs from itself under changes that must not matter. Pure.

The control runs step 0 again with its documents in another order, and with every weight moved by one machine epsilon
of the compute dtype (tolerance by perturbation: TTrace, arXiv 2506.09280). Bounds are a multiple of the largest
relative difference that this makes (core/tolerances.py). A value that is zero in step 0 has no relative difference, and
a gradient that is nothing but rounding noise has any: neither sets a floor.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from harness.core.cell.canary_legs import NOISE_LEGS
from harness.core.run.records import DocumentLoss, LegSeen, RankRecord, TrainingSeen
from harness.core.run.tensor_records import ActivationSeen, Fingerprint
from harness.core.tolerances import MAX_NOISE, NOISE_FACTOR, ROUNDING_SHARE, Bound, NoiseFloor, Tolerances
from harness.judge.stats.distance import distance, fingerprint_distance

_RELATIVE = Bound(value=0.0)
_ABSOLUTE = Bound(value=0.0, unit="absolute")


def noise_floors(records: Mapping[int, RankRecord]) -> dict[str, NoiseFloor]:
    """Return name of a bound -> the largest difference over the noise legs; empty if the cell ran none.

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
    noise_only = _noise_only(record, legs)
    for leg in legs:
        for name, value, at in _differences(record, leg, noise_only):
            if math.isfinite(value) and (name not in floors or value > floors[name].value):
                floors[name] = NoiseFloor(value=value, by=NOISE_LEGS[leg.leg] + where, at=at)
    if noise_only and "parameter_gradient" in floors:
        floors["parameter_gradient"] = replace(floors["parameter_gradient"], noise_only=tuple(sorted(noise_only)))
    return floors


# A clean cell of 30 steps at a learning rate of 0.01 was as far from the oracle as the pair three steps later.
_AHEAD = 3


def later_floors(record: RankRecord) -> dict[str, dict[int, NoiseFloor]]:
    """Return name of a bound -> finished updates -> the largest difference so far between a control's two trainings.

    One of these starts from moved weights; empty if it trained once.

    `change` and `trained`, of every weight, are named with the parameter, and are of the last step.
    """
    leg = next((leg for leg in record.legs if leg.training is not None), None)
    if leg is None or leg.training is None:
        return {}
    by = NOISE_LEGS[leg.leg] + _where(record)
    floors: dict[str, dict[int, NoiseFloor]] = {}
    for name, step, value, at in sorted(_later_differences(record, leg.training), key=lambda difference: difference[1]):
        known = floors.setdefault(name, {})
        before = known.get(max(known, default=step))
        # A floor never falls again, and NaN stays: once rounding has decided a number, it decides all later ones.
        if before is not None and (math.isnan(before.value) or value <= before.value):
            known[step] = before
        else:
            known[step] = NoiseFloor(value=value, by=by, at=at)
    _widen_norms(floors)
    _widen_changes(floors)
    return floors


def _widen_norms(floors: dict[str, dict[int, NoiseFloor]]) -> None:
    """Raise the floor of gradient norms to that of documents, and of the steps after it.

    A gradient norm is one number and may be close by chance, and where rounding grows by a factor in every step a cell
    may be ahead of the pair.
    """
    norms = floors.get("grad_norm", {})
    for step in sorted(norms):
        ahead = [norms.get(later) for later in range(step + 1, step + _AHEAD + 1)]
        candidates = [norms[step], floors.get("document_loss", {}).get(step), *ahead]
        known = [floor for floor in candidates if floor is not None]
        norms[step] = max(known, key=_size)


def _widen_changes(floors: dict[str, dict[int, NoiseFloor]]) -> None:
    """Raise the floor of a weight's change over all steps to that of gradient norms.

    The change may be close by chance too, where the gradients that make it are not.
    """
    norms = floors.get("grad_norm")
    if not norms:
        return
    least = norms[max(norms)]
    for name in floors:
        if name.startswith("trained of "):
            floors[name] = {step: max(floor, least, key=_size) for step, floor in floors[name].items()}


def _size(floor: NoiseFloor) -> float:
    return math.inf if math.isnan(floor.value) else floor.value


def _later_differences(record: RankRecord, again: TrainingSeen) -> Iterator[tuple[str, int, float, str]]:
    """Yield (name, step, relative difference, what differs)."""
    for own, step in zip(record.steps[1:], again.steps):
        for name, value, at in _loss_differences(own.documents, step.documents):
            yield name, own.step, value, at
        if own.grad_norm is not None and step.grad_norm is not None:
            yield "grad_norm", own.step, distance(step.grad_norm, own.grad_norm, _RELATIVE), ""
    for recorded, repeated in zip(record.evaluations, again.evaluations):
        for name, value, at in _loss_differences(recorded.documents, repeated.documents):
            yield name, recorded.after, value, at
        for name, value, at in _output_differences(recorded.activations, repeated.activations):
            yield name, recorded.after, value, at
    for bias, moved in zip(record.expert_biases, again.expert_biases):
        off = max(abs(a - b) for a, b in zip(bias.values, moved.values))
        yield "expert_bias", bias.step, off, f"layer {bias.layer}"
    last = len(record.steps)
    updates = {recorded.name: recorded.update for recorded in record.parameters if recorded.update is not None}
    changes = {name: update.change for name, update in updates.items()}
    trained = {name: update.trained for name, update in updates.items() if update.trained is not None}
    merged = {recorded.name: recorded.after for recorded in record.merged if recorded.after is not None}
    for what, weights, others, step_number in (
        ("change", changes, again.changes, 1),
        ("trained", trained, again.trained, last),
        ("merged", merged, again.merged, last),
    ):
        for name in weights.keys() & others.keys():
            yield f"{what} of {name}", step_number, fingerprint_distance(others[name], weights[name]), name
    for name, far in again.apart.items():
        yield f"change of {name}", 1, far.change, name
        yield f"trained of {name}", last, far.trained, name


def _output_differences(
    own: Sequence[ActivationSeen], again: Sequence[ActivationSeen]
) -> Iterator[tuple[str, float, str]]:
    outputs = {activation.layer: activation.documents for activation in again}
    for activation in own:
        for document, fingerprint in activation.documents.items():
            output = outputs.get(activation.layer, {}).get(document)
            if output is not None and fingerprint.norm_sq:
                where = f"document {document} after layer {activation.layer}"
                yield "activation", fingerprint_distance(output, fingerprint), where


def _loss_differences(
    own: Mapping[int, DocumentLoss], other: Mapping[int, DocumentLoss]
) -> Iterator[tuple[str, float, str]]:
    losses = {
        document: (other[document].loss_sum, loss.loss_sum) for document, loss in own.items() if document in other
    }
    for document, (measured, expected) in losses.items():
        if expected:
            yield "document_loss", distance(measured, expected, _RELATIVE), f"document {document}"
    if losses:
        yield "step_loss", _sum_difference([*losses.values()]), ""


def least_norms(bounds: Tolerances, gradients: Iterable[Fingerprint]) -> dict[str, float]:
    """Return parameters whose gradient is rounding noise -> the least norm that differences are relative to.

    With it a difference is within the bound if rounding can make it. `gradients`: of all parameters.
    """
    least = _rounding(gradients) / bounds.parameter_gradient.value
    return dict.fromkeys(bounds.noise_only, least)


def _rounding(gradients: Iterable[Fingerprint]) -> float:
    """Return the norm of what rounding makes of a gradient."""
    total = math.fsum(gradient.norm_sq for gradient in gradients if math.isfinite(gradient.norm_sq))
    return ROUNDING_SHARE * math.sqrt(max(total, 0.0))


def _noise_only(record: RankRecord, legs: Sequence[LegSeen]) -> frozenset[str]:
    """Return parameters whose gradient differs from itself by more than bounds allow, but by no more than rounding."""
    small = _rounding(parameter.gradient for parameter in record.parameters)
    again = [{parameter.name: parameter.gradient for parameter in leg.parameters} for leg in legs]
    names = set()
    for parameter in record.parameters:
        own = parameter.gradient
        pairs = [(gradients[parameter.name], own) for gradients in again if parameter.name in gradients]
        worst = max((fingerprint_distance(gradient, own, _ABSOLUTE) for gradient, own in pairs), default=0.0)
        if 0 <= own.norm_sq <= small * small and MAX_NOISE * math.sqrt(own.norm_sq) < worst <= small / NOISE_FACTOR:
            names.add(parameter.name)
    return frozenset(names)


def _where(record: RankRecord) -> str:
    """Return the attention kernel and device of the measurement: other kernels round differently."""
    environment = record.environment
    return (
        f"; {environment['attention']} on {environment['device']}"
        if {"attention", "device"} <= environment.keys()
        else ""
    )


def _differences(record: RankRecord, leg: LegSeen, noise_only: frozenset[str]) -> Iterator[tuple[str, float, str]]:
    """Yield (name of a bound, relative difference, what differs) of everything that step 0 and the leg both have."""
    losses = {
        document: (leg.documents[document].loss_sum, loss.loss_sum)
        for document, loss in record.steps[0].documents.items()
        if document in leg.documents
    }
    for document, (measured, expected) in losses.items():
        if expected:
            value = distance(measured, expected, _RELATIVE)
            yield "document_loss", value, f"document {document}"
            yield "repeated_document", value, f"document {document}"
    if losses:
        yield "step_loss", _sum_difference([*losses.values()]), ""
    again = {parameter.name: parameter.gradient for parameter in leg.parameters}
    pairs = {
        parameter.name: (again[parameter.name], parameter.gradient)
        for parameter in record.parameters
        if parameter.name in again
    }
    for name, (gradient, own) in pairs.items():
        if own.norm_sq and name not in noise_only:
            yield "parameter_gradient", fingerprint_distance(gradient, own), name
    # The norm is the root of a sum, so it differs by half as much as the sum.
    squares = [(gradient.norm_sq, own.norm_sq) for gradient, own in pairs.values()]
    yield "grad_norm", _sum_difference(squares) / 2, ""
    yield from _output_differences(record.activations, leg.activations)


def _sum_difference(terms: Sequence[tuple[float, float]]) -> float:
    """Return the relative difference of sums of (measured, expected) terms, as if all differed with the same sign.

    A single sum may differ by almost nothing by chance; and rounding to bf16 moves all terms alike, so that elsewhere
    their differences may add up.
    """
    total = abs(math.fsum(expected for _, expected in terms))
    return math.fsum(abs(measured - expected) for measured, expected in terms) / total if total else math.nan
