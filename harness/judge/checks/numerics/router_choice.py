"""The scores of the oracle allow what routers chose, up to rounding: where it follows them, in bf16 (all steps)."""

from __future__ import annotations

from harness.core.packing.arithmetic import PAD
from harness.core.tolerances import GROWTH_FACTOR, NOISE_FACTOR
from harness.judge.checks.finding import CheckFinding
from harness.judge.diagnosis import fault_classes
from harness.judge.evidence.cell_evidence import CellEvidence


def check(evidence: CellEvidence) -> list[CheckFinding]:
    record = evidence.oracle.record if evidence.oracle else None
    for seen in record.followed if record else ():
        bound = (GROWTH_FACTOR if seen.step else NOISE_FACTOR) * seen.rounding
        if not seen.shortfall > bound or evidence.bound("grad_norm", _updates(evidence, seen.step)) is None:
            continue
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
                message=f"layer {seen.layer} sends {whose} to expert {seen.expert} in {of_step}, whose score is "
                f"{seen.shortfall:.3g} below that of an expert left out, by the oracle; rounding explains {bound:.2g}",
                where=where,
                measured=seen.shortfall,
                bound=bound,
            )
        ]
    return []


def _updates(evidence: CellEvidence, step: int) -> int:
    """Those that the gradient norm shows which is recorded last before a step, or an evaluation."""
    config = evidence.cell.config
    later = step - config.train.steps
    return step if later < 0 else config.evaluated[later] - 1
