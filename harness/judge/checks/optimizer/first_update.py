"""What the optimizer's first update makes of the gradients equals the control's: Adam's moments and the change of every
weight. With right gradients, it shows what lies between them and the weights: clipping, the optimizer's shards, decay.
"""

from __future__ import annotations

import math
from dataclasses import replace

from harness.core.tolerances import ACCEPTS_NONE
from harness.judge.checks.finding import CheckFinding
from harness.judge.checks.numerics import parameter_gradients, replica_gradients
from harness.judge.checks.optimizer.shared import Kind, finding, wrong_updates
from harness.judge.evidence.cell_evidence import CellEvidence

_SQUARE = "the square of a gradient is off by twice as much"
# In bf16 about one sign of a norm's 64 weights changes, and by chance it may be a few: of 24 clean cells with latent
# attention on two ranks, a sixth of the signs of one weight.
_FEW_SIGNS = 5
_MOST_SIGNS = 0.95  # an update that is left out is off by 1
_SIGNS = "Adam's first update is the sign of the gradient; an error of relative size e changes about a share e of signs"


def check(evidence: CellEvidence) -> list[CheckFinding]:
    if not evidence.fingerprinted:
        return []
    for kind in kinds(evidence):
        if wrong := wrong_updates(evidence, kind):
            if parameter_gradients.check(evidence) or replica_gradients.check(evidence):
                return []  # a consequence of wrong gradients
            return [finding(evidence, kind, wrong)]
    return []


def kinds(evidence: CellEvidence) -> list[Kind]:
    """What is compared: the bounds follow from that of gradients, and must be able to tell an update from none."""
    bound = evidence.tolerances.parameter_gradient
    double = replace(bound, value=4 * bound.value, origin=f"{bound.origin}; {_SQUARE}")
    signs = replace(bound, value=sign_changes(evidence), origin=f"{bound.origin}; {_SIGNS}")
    first = Kind("first_moment", "first moment", bound, noise=True)
    if bound.unit == "absolute":  # a first moment is smaller than its gradient; the others have another scale
        return [first]
    others = (
        Kind("second_moment", "second moment", double),
        Kind("change", "change by the first update", signs),
    )
    return [first, *(kind for kind in others if kind.bound.value < ACCEPTS_NONE)]


def sign_changes(evidence: CellEvidence) -> float:
    """How far the signs of gradients, that is an update, may be off if gradients are within their bound."""
    share = evidence.tolerances.parameter_gradient.value
    off = 2 * math.sqrt(share)
    if evidence.cell.config.dtype == "fp32" or off >= ACCEPTS_NONE:
        return off
    return min(2 * math.sqrt(_FEW_SIGNS * share), _MOST_SIGNS)
