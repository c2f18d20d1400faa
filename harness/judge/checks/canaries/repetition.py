"""Canary repetition: copies of one document have the same loss, wherever each is in its pack; needs no control."""

from __future__ import annotations

import math

from harness.judge.checks.finding import CheckFinding
from harness.judge.diagnosis import fault_classes
from harness.judge.evidence.cell_evidence import CellEvidence
from harness.judge.evidence.leg_evidence import LegEvidence
from harness.judge.stats.distance import beyond, bound_text, distance, stated


def check(evidence: CellEvidence) -> list[CheckFinding]:
    leg = evidence.legs.get("repetition")
    if leg is None:
        return []
    bound = evidence.own.repeated_document
    original = next(iter(leg.positions))  # first in its pack: nothing can leak into it
    right = leg.losses.get(original)
    if right is None or not math.isfinite(right.loss_sum):
        return []  # `token_count` and `finiteness` cover these
    off = {
        copy: distance(leg.losses[copy].loss_sum, right.loss_sum, bound)
        for copy in leg.positions
        if copy in leg.losses and math.isfinite(leg.losses[copy].loss_sum)
    }
    wrong = [copy for copy, value in off.items() if beyond(value, bound)]
    return [_finding(evidence, leg, original, wrong, off)] if wrong else []


def _finding(
    evidence: CellEvidence, leg: LegEvidence, original: int, wrong: list[int], off: dict[int, float]
) -> CheckFinding:
    bound, copy = evidence.own.repeated_document, wrong[0]
    position = leg.positions[copy]
    return CheckFinding(
        fault_class=fault_classes.LEAK if position.number else fault_classes.UNKNOWN,
        message=f"all documents are copies of one, but the loss sum of copy {copy} is {leg.losses[copy].loss_sum:.9g} "
        f"({position}, which has {len(leg.plan[position.dp][position.micro_batch].placed)}), and that of copy "
        f"{original} is {leg.losses[original].loss_sum:.9g}, off by {off[copy]:.3g} > {bound_text(bound)}; "
        f"{len(wrong)} of {len(off)} differ",
        where=position.where("repetition", evidence.last_stage)
        | {"document": copy, "original": original, "number": position.number, "documents": wrong},
        measured=off[copy],
        bound=stated(bound),
    )
