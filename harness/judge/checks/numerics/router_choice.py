"""The scores of the oracle allow what routers chose, and its weights what experts drop beyond their capacity, up to
rounding, in all steps and evaluations. By position nothing is rounded.
"""

from __future__ import annotations

from harness.core.packing.arithmetic import PAD
from harness.core.run.records import FollowedSeen
from harness.core.tolerances import NOISE_FACTOR
from harness.judge.checks.finding import CheckFinding
from harness.judge.checks.numerics import grad_norm, parameter_gradients
from harness.judge.checks.optimizer import first_update
from harness.judge.diagnosis import fault_classes
from harness.judge.evidence.cell_evidence import CellEvidence


def check(evidence: CellEvidence) -> list[CheckFinding]:
    record = evidence.oracle.record if evidence.oracle else None
    for seen in record.followed if record else ():
        bound = _bound(evidence, seen)
        if not seen.shortfall > bound:
            continue
        if seen.rounding and evidence.bound("grad_norm", _updates(evidence, seen.step)) is None:
            continue
        if seen.step and _wrong_before(evidence, seen.step):
            return []
        layers = evidence.cell.config.model.layers
        stage = evidence.layout.stage_of_layer(layers, seen.layer) if seen.layer <= layers else evidence.last_stage
        whose = "padding" if seen.document == PAD else f"token {seen.position} of document {seen.document}"
        when = evidence.cell.config.train.steps
        of_step = f"step {seen.step}" if seen.step < when else f"evaluation {seen.step - when}"
        where = {"stage": stage, "layer": seen.layer, "step": min(seen.step, when), "expert": seen.expert}
        if seen.document != PAD:
            where |= {"document": seen.document, "token": seen.position}
        return [
            CheckFinding(
                fault_class=fault_classes.ROUTER,
                message=f"in {of_step} layer {seen.layer} {_what(evidence, seen, whose)}",
                where=where,
                measured=seen.shortfall,
                bound=bound,
            )
        ]
    return []


def _what(evidence: CellEvidence, seen: FollowedSeen, whose: str) -> str:
    moe, bound = evidence.cell.config.model.moe, _bound(evidence, seen)
    if not seen.dropped:
        return (
            f"sends {whose} to expert {seen.expert}, whose score is {seen.shortfall:.3g} below that of an expert left "
            f"out, by the oracle; rounding explains {bound:.2g}"
        )
    drops = f"drops {whose} from expert {seen.expert}, though"
    if moe is not None and moe.drop_policy == "position":
        return f"{drops} it comes {seen.shortfall:.0f} slots before one that the expert takes"
    return (
        f"{drops} its weight is {seen.shortfall:.3g} above that of a slot that the expert takes, by the oracle; "
        f"rounding explains {bound:.2g}"
    )


def _bound(evidence: CellEvidence, seen: FollowedSeen) -> float:
    return (evidence.growth() if seen.step else NOISE_FACTOR) * seen.rounding


def _wrong_before(evidence: CellEvidence, step: int) -> bool:
    """Whether gradients or updates before a step are wrong already, so that its weights are."""
    earlier = (parameter_gradients, first_update, grad_norm)
    return any(finding.where.get("step", 0) < step for check in earlier for finding in check.check(evidence))


def _updates(evidence: CellEvidence, step: int) -> int:
    """Those that the gradient norm shows which is recorded last before a step, or an evaluation."""
    config = evidence.cell.config
    later = step - config.train.steps
    return step if later < 0 else config.evaluated[later] - 1
