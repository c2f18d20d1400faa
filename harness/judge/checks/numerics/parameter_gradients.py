"""Every parameter's gradient (step 0, reduced, before clipping) equals the reference's, by fingerprint."""

from __future__ import annotations

import math
from collections.abc import Mapping

from harness.judge.checks.finding import CheckFinding
from harness.judge.diagnosis import boundaries, fault_classes
from harness.judge.diagnosis.localise import shards_off
from harness.judge.diagnosis.ratios import factors_of, ratio_name, scale_of
from harness.judge.evidence.assemble import ParameterGradient
from harness.judge.evidence.cell_evidence import CellEvidence
from harness.judge.stats.distance import beyond, bound_text, exactly, fingerprint_distance, finite, stated
from harness.judge.stats.noise import least_norms


def check(evidence: CellEvidence) -> list[CheckFinding]:
    if evidence.reference is None or not evidence.fingerprinted or not evidence.same_rows:
        return []
    measured, expected = evidence.gradients, evidence.reference.gradients
    bound = evidence.tolerances.parameter_gradient
    least = least_norms(evidence.tolerances, (one.fingerprint for one in expected.values()))
    off: dict[str, float] = {}
    for name, right in expected.items():  # in model order, as its one rank lists them
        found = measured.get(name)
        if found is None:
            off[name] = math.inf
        elif finite(found.fingerprint):
            norm = least.get(name, 0.0)
            off[name] = fingerprint_distance(found.fingerprint, right.fingerprint, bound, least_norm=norm)
    wrong = [name for name, value in off.items() if beyond(value, bound)]
    # Tied embeddings: stages other than the first hold a copy under the output layer's name.
    tied = evidence.cell.config.model.tied
    extra = [name for name in measured if name not in expected and not (tied and name.startswith("output_layer."))]
    if not wrong and not extra and expected:
        return []
    if not wrong:
        return [_unmatched(evidence, extra)]
    return [_finding(evidence, evidence.reference, wrong, off)]


def _finding(evidence: CellEvidence, control: CellEvidence, wrong: list[str], off: dict[str, float]) -> CheckFinding:
    measured, expected, bound = evidence.gradients, control.gradients, evidence.tolerances.parameter_gradient
    name, of = wrong[0], len(expected)
    ratio = _common_ratio(evidence, wrong, measured, expected)
    shards = shards_off(measured[name], expected[name], bound) if name in measured else None
    edges = boundaries.of_parameter(evidence.layout, evidence.cell.config.model.spread, name, shards)
    edges = boundaries.NOTHING if ratio else edges  # a factor common to all does not point to one place
    where = _where(measured, name) | {"parameter": name, "step": 0, "parameters": wrong[:16]}
    value = "missing" if math.isinf(off[name]) else f"off by {off[name]:.3g} > {bound_text(bound)}"
    named = f"; the ratio is {ratio} on all that differ" if ratio else ""
    # Backward reaches the last parameter first: if all before it differ and none after it, the fault is there.
    if not ratio and 1 < len(wrong) < of and wrong == list(expected)[: len(wrong)]:
        named, edges = f"; backward meets {wrong[-1]} first", boundaries.NOTHING
    return CheckFinding(
        fault_class=f"{fault_classes.NORMALISATION}: {ratio}" if ratio else fault_classes.GRADIENT_REDUCTION,
        message=f"gradient of {name}: {value}{named}; {len(wrong)} of {of} parameters differ{edges.text}",
        where=where | ({"ratio": ratio} if ratio else {}) | edges.keys,
        measured=off[name],
        bound=stated(bound),
    )


def _unmatched(evidence: CellEvidence, extra: list[str]) -> CheckFinding:
    message = (
        f"gradient of {extra[0]}, which the {evidence.origin} does not have"
        if extra
        else "no gradients to compare with"
    )
    return CheckFinding(
        fault_class=fault_classes.UNKNOWN,
        message=message,
        where={"parameter": extra[0], "step": 0} if extra else {"step": 0},
        measured=len(extra),
        bound=exactly(f"the parameters of the {evidence.origin}", "the same model"),
    )


def _where(measured: Mapping[str, ParameterGradient], name: str) -> dict[str, int]:
    where = {"stage": measured[name].stage} if name in measured else {}
    layer = boundaries.layer_of(name)
    return where | ({"layer": layer} if layer else {})


def _common_ratio(
    evidence: CellEvidence,
    wrong: list[str],
    measured: Mapping[str, ParameterGradient],
    expected: Mapping[str, ParameterGradient],
) -> str | None:
    """The layout factor by which all differing gradients are off, if they share one and their direction is right."""
    if any(name not in measured for name in wrong):
        return None
    tolerances = evidence.tolerances
    pairs = [(measured[name].fingerprint, expected[name].fingerprint) for name in wrong]
    screen = max(tolerances.ratio_screen, tolerances.parameter_gradient.value)
    scale = scale_of(pairs, screen)
    return None if scale is None else ratio_name(scale, factors_of(evidence, 0), tolerances.ratio_screen)
