"""Canary rewriting: names the modules that still differ when each gets a right input and a right gradient.

These are all the faulty ones; any other that differed in the training leg only inherited the error. Forward and
backward are distinguished: a module whose forward is right but whose gradients differ is faulty in its backward.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from harness.core.run.tensor_records import Fingerprint
from harness.core.tolerances import Bound
from harness.judge.checks.finding import CheckFinding
from harness.judge.diagnosis import boundaries, fault_classes
from harness.judge.diagnosis.localise import activations_off
from harness.judge.diagnosis.ratios import factors_of, ratio_name, scale_of
from harness.judge.evidence.assemble import ParameterGradient
from harness.judge.evidence.cell_evidence import CellEvidence
from harness.judge.evidence.leg_evidence import LegEvidence
from harness.judge.locations import listed
from harness.judge.stats.distance import beyond, bound_text, distance, fingerprint_distance, finite
from harness.judge.stats.noise import least_norms

_Documents = Mapping[int, Fingerprint]


@dataclass(kw_only=True)
class _Module:
    """Deviations of one module: distances beyond their bounds, by document, and by parameter in model order."""

    number: int  # 0: embedding; layers from 1; one more than the last: final norm, output layer and loss
    forward: dict[int, float] = field(default_factory=dict)  # document -> distance
    backward: dict[str, float] = field(default_factory=dict)  # parameter or "input" -> distance


def check(evidence: CellEvidence) -> list[CheckFinding]:
    leg = evidence.legs.get("rewriting")
    right = evidence.control.legs.get("rewriting") if evidence.control else None
    if leg is None or right is None:
        return []
    modules = [_module(evidence, leg, right, number) for number in range(evidence.cell.config.model.layers + 2)]
    forward = [module for module in modules if module.forward]
    backward = [module for module in modules if module.backward and not module.forward]
    findings = [_finding(evidence, "forward", forward, _inherited(evidence, modules))] if forward else []
    if len(backward) == len(modules):
        return [_reduction(evidence, backward, _shared_ratio(evidence, leg, right))]
    return [*findings, _finding(evidence, "backward", backward, [])] if backward else findings


def _inherited(evidence: CellEvidence, modules: list[_Module]) -> list[str]:
    """Layers whose output differed in the training leg but is right when their input is."""
    control, bound = evidence.control, evidence.own.activation
    if control is None or not evidence.first_step_whole:
        return []
    return [
        _name(evidence, module.number)
        for module in modules[:-1]
        if not module.forward
        and any(beyond(off, bound) for off in activations_off(evidence, control, module.number).values())
    ]


def _module(evidence: CellEvidence, leg: LegEvidence, right: LegEvidence, number: int) -> _Module:
    tolerances, layers = evidence.own, evidence.cell.config.model.layers
    module = _Module(number=number)
    if number <= layers:
        outputs = leg.activations.get(number, {}), right.activations.get(number, {})
        module.forward = dict(_documents_off(*outputs, tolerances.activation))
    else:
        module.forward = dict(_losses_off(leg, right, tolerances.document_loss))
    if not evidence.same_rows_as_control:
        return module
    least = least_norms(tolerances, (one.fingerprint for one in right.gradients.values()))
    for name, expected in right.gradients.items():
        if _module_of(name, layers) == number:
            norm = least.get(name, 0.0)
            off = _gradient_off(leg.gradients.get(name), expected, tolerances.parameter_gradient, norm)
            module.backward |= {name: off} if off else {}
    inputs = leg.input_gradients.get(number, {}), right.input_gradients.get(number, {})
    worst = max((off for _, off in _documents_off(*inputs, tolerances.parameter_gradient)), default=0.0)
    module.backward |= {"input": worst} if worst else {}
    return module


def _module_of(parameter: str, layers: int) -> int:
    if parameter.startswith("embedding."):
        return 0
    return boundaries.layer_of(parameter) or layers + 1


def _documents_off(measured: _Documents, expected: _Documents, bound: Bound) -> Iterator[tuple[int, float]]:
    for document, right in sorted(expected.items()):
        found = measured.get(document)
        off = math.inf if found is None else fingerprint_distance(found, right, bound)
        if beyond(off, bound):
            yield document, off


def _losses_off(leg: LegEvidence, right: LegEvidence, bound: Bound) -> Iterator[tuple[int, float]]:
    for document, expected in sorted(right.losses.items()):
        found = leg.losses.get(document)
        off = math.inf if found is None else distance(found.loss_sum, expected.loss_sum, bound)
        if beyond(off, bound):
            yield document, off


def _gradient_off(found: ParameterGradient | None, right: ParameterGradient, bound: Bound, least: float) -> float:
    if found is None:
        return math.inf
    if not finite(found.fingerprint):
        return 0.0  # `finiteness` covers these
    off = fingerprint_distance(found.fingerprint, right.fingerprint, bound, least_norm=least)
    return off if beyond(off, bound) else 0.0


def _shared_ratio(evidence: CellEvidence, leg: LegEvidence, right: LegEvidence) -> str | None:
    """The layout factor by which all gradients are off, if any; then no module is at fault."""
    names = [name for name in right.gradients if name in leg.gradients]
    pairs = [(leg.gradients[name].fingerprint, right.gradients[name].fingerprint) for name in names]
    screen = max(evidence.own.ratio_screen, evidence.own.parameter_gradient.value)
    scale = scale_of(pairs, screen)
    return None if scale is None else ratio_name(scale, factors_of(evidence, 0), evidence.own.ratio_screen)


def _name(evidence: CellEvidence, number: int) -> str:
    layers = evidence.cell.config.model.layers
    return "embedding" if number == 0 else f"layer {number}" if number <= layers else "output"


def _stage(evidence: CellEvidence, number: int) -> int:
    layers = evidence.cell.config.model.layers
    if not 0 < number <= layers:
        return evidence.last_stage if number else 0
    return evidence.layout.stage_of_layer(evidence.cell.config.model.spread, number)


def _finding(evidence: CellEvidence, direction: str, modules: list[_Module], inherited: list[str]) -> CheckFinding:
    first, layers = modules[0], evidence.cell.config.model.layers
    off: Iterable[tuple[int | str, float]] = first.forward.items()
    if direction == "backward":
        off = first.backward.items()
    what, value = next(iter(off))
    names = [_name(evidence, module.number) for module in modules]
    rest = f"{listed(inherited)} only inherited the error" if inherited else "all other differences are inherited"
    given = "right inputs" if direction == "forward" else "right inputs and right gradients of their outputs"
    subject = f"document {what}" if direction == "forward" else f"the gradient of {what}"
    bounds = evidence.own
    bound = bounds.parameter_gradient
    if direction == "forward":
        bound = bounds.activation if first.number <= layers else bounds.document_loss
    more: dict[str, Any] = {"document": what} if direction == "forward" else {"parameter": what}
    more |= {"parameters": list(first.backward)} if direction == "backward" else {}
    layer = {"layer": first.number} if 0 < first.number <= layers else {}
    return CheckFinding(
        fault_class=fault_classes.UNKNOWN,
        message=f"faulty in {direction}: {listed(names)}; with {given} these still differ from the control, "
        f"{names[0]} in {subject} by {value:.3g} > {bound_text(bound)}; {rest}",
        where={"stage": _stage(evidence, first.number), **layer, "leg": "rewriting", "step": 0, **more}
        | {"direction": direction, "modules": names, "inherited": inherited}
        | {"stages": sorted({_stage(evidence, module.number) for module in modules})},
        measured=value,
        bound=bound.value,
    )


def _reduction(evidence: CellEvidence, modules: list[_Module], ratio: str | None) -> CheckFinding:
    """The finding if all gradients are wrong though every forward is right: what the modules share is wrong."""
    bound = evidence.own.parameter_gradient
    value = next(iter(modules[0].backward.values()))
    return CheckFinding(
        fault_class=f"{fault_classes.NORMALISATION}: {ratio}" if ratio else fault_classes.GRADIENT_REDUCTION,
        message=f"no module is faulty by itself: the gradients of all are off{f' by {ratio}' if ratio else ''}, so "
        "their reduction or weighting is wrong",
        where={"leg": "rewriting", "step": 0, "direction": "reduction"} | ({"ratio": ratio} if ratio else {}),
        measured=value,
        bound=bound.value,
    )
