"""The change of every weight over all steps equals the control's, and copies of a weight have the same. With a right
first update, it shows what goes wrong in a later one: an update that a rank skips, a schedule, stale shards.
"""

from __future__ import annotations

import math
from dataclasses import replace

from harness.core.tolerances import ACCEPTS_NONE, Bound
from harness.judge.checks.finding import CheckFinding
from harness.judge.checks.numerics import parameter_gradients, replica_gradients
from harness.judge.checks.optimizer import first_update
from harness.judge.checks.optimizer.shared import Kind, finding, wrong_updates
from harness.judge.evidence.cell_evidence import CellEvidence

# Adam's first update is the sign of the gradient. An error of relative size e in the gradient changes about a share e
# of the signs, so the update is off by 2 sqrt(e). Errors of n updates, relative to their sum, grow by sqrt(n) at most.
_FEW_SIGNS = 3  # of one update in bf16
_ORIGIN = "2 sqrt({steps:g} x {gradient:g}), the bound of gradients: Adam's updates are about their signs"


def bound_of(evidence: CellEvidence) -> Bound:
    """Of the change over all steps; in bf16 signs that rounding changes in one update are right in most others."""
    gradient, steps = evidence.tolerances.parameter_gradient, evidence.cell.config.train.steps
    several = steps if evidence.cell.config.dtype == "fp32" else max(1.0, _FEW_SIGNS / steps)
    origin = _ORIGIN.format(steps=several, gradient=gradient.value)
    value = first_update.sign_changes(evidence) if steps == 1 else 2 * math.sqrt(several * gradient.value)
    return replace(gradient, value=value, origin=origin)


def check(evidence: CellEvidence) -> list[CheckFinding]:
    bound, steps = bound_of(evidence), evidence.cell.config.train.steps
    if not evidence.fingerprinted or bound.unit == "absolute" or bound.value >= ACCEPTS_NONE:
        return []
    kind = Kind("trained", f"change over {steps} steps", bound, right="first update", step=steps - 1)
    wrong = wrong_updates(evidence, kind)
    earlier = (parameter_gradients, replica_gradients, first_update)
    if not wrong or any(check.check(evidence) for check in earlier):
        return []
    return [finding(evidence, kind, wrong)]
