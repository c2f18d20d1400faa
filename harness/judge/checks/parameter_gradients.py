"""Every parameter's gradient (step 0, reduced, before clipping) equals the reference's, by fingerprint."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping

from harness.judge import fault_classes
from harness.judge.compare import beyond, bound_text, fingerprint_distance, finite, ratio_name
from harness.judge.evidence import CellEvidence, ParameterGradient
from harness.words.outcomes import Finding, Lane

_LAYER = re.compile(r"\blayers\.(\d+)\.")


def check(evidence: CellEvidence) -> list[Finding]:
    if evidence.reference is None or not evidence.first_step_whole:
        return []
    measured, expected = evidence.gradients, evidence.reference.gradients
    bound = evidence.tolerances.parameter_gradient
    off: dict[str, float] = {}
    for name, right in expected.items():  # in model order, as the reference's one rank lists them
        found = measured.get(name)
        if found is None:
            off[name] = math.inf
        elif finite(found.fingerprint):
            off[name] = fingerprint_distance(found.fingerprint, right.fingerprint)
    wrong = [name for name, value in off.items() if beyond(value, bound)]
    # Tied embeddings: stages other than the first hold a copy under the output layer's name.
    tied = evidence.cell.config.model.tied
    extra = [name for name in measured if name not in expected and not (tied and name.startswith("output_layer."))]
    if not wrong and not extra and expected:
        return []
    if not wrong:
        return [_unmatched(extra)]
    name = wrong[0]
    ratio = _common_ratio(evidence, measured, expected)
    where = _where(measured, name) | {"parameter": name, "step": 0, "parameters": wrong[:16]}
    value = "missing" if math.isinf(off[name]) else f"off by {off[name]:.3g} > {bound_text(bound)}"
    named = f"; the ratio is {ratio} on all" if ratio else ""
    return [
        Finding(
            lane=Lane.NUMERICS,
            check="parameter_gradients",
            fault_class=f"{fault_classes.NORMALISATION}: {ratio}" if ratio else fault_classes.GRADIENT_REDUCTION,
            message=f"gradient of {name}: {value}{named}; {len(wrong)} of {len(expected)} parameters differ",
            where=where,
            measured=off[name],
            bound=bound.value,
        )
    ]


def _unmatched(extra: list[str]) -> Finding:
    message = f"gradient of {extra[0]}, which the reference does not have" if extra else "no gradients to compare with"
    return Finding(
        lane=Lane.NUMERICS,
        check="parameter_gradients",
        fault_class=fault_classes.UNKNOWN,
        message=message,
        where={"parameter": extra[0], "step": 0} if extra else {"step": 0},
        measured=len(extra),
        bound="the parameters of the reference",
    )


def _where(measured: Mapping[str, ParameterGradient], name: str) -> dict[str, int]:
    found = _LAYER.search(name)
    where = {"stage": measured[name].stage} if name in measured else {}
    return where | ({"layer": int(found.group(1)) + 1} if found else {})


def _common_ratio(
    evidence: CellEvidence, measured: Mapping[str, ParameterGradient], expected: Mapping[str, ParameterGradient]
) -> str | None:
    """The layout factor that every parameter's norm is off by, if there is one."""
    names = set()
    for name, right in expected.items():
        found = measured.get(name)
        if found is None or not right.fingerprint.norm_sq > 0 or not finite(found.fingerprint):
            return None
        ratio = math.sqrt(found.fingerprint.norm_sq / right.fingerprint.norm_sq)
        micro_batches = len(evidence.plan[0][0])
        names.add(ratio_name(ratio, evidence.layout, micro_batches, evidence.tolerances.ratio_screen))
    return names.pop() if len(names) == 1 else None
