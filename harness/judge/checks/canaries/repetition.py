"""Canary repetition: copies of one document have one loss, wherever each sits in its pack; needs no reference."""

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
    bound = evidence.tolerances.repeated_document
    original = next(iter(leg.seats))  # first in its pack: nothing can leak into it
    right = leg.losses.get(original)
    if right is None or not math.isfinite(right.loss_sum):
        return []  # token_count and finiteness have these
    off = {
        copy: distance(leg.losses[copy].loss_sum, right.loss_sum, bound)
        for copy in leg.seats
        if copy in leg.losses and math.isfinite(leg.losses[copy].loss_sum)
    }
    wrong = [copy for copy, value in off.items() if beyond(value, bound)]
    return [_finding(evidence, leg, original, wrong, off)] if wrong else []


def _finding(
    evidence: CellEvidence, leg: LegEvidence, original: int, wrong: list[int], off: dict[int, float]
) -> CheckFinding:
    bound, copy = evidence.tolerances.repeated_document, wrong[0]
    seat = leg.seats[copy]
    inside = len(leg.plan[seat.dp][seat.micro_batch].placed)
    return CheckFinding(
        fault_class=fault_classes.LEAK if seat.number else fault_classes.UNKNOWN,
        message=f"all documents are copies of one, but the loss sum of copy {copy}, number {seat.number} of {inside} "
        f"in micro-batch {seat.micro_batch} of replica {seat.dp}, is {leg.losses[copy].loss_sum:.9g}, that of copy "
        f"{original} {leg.losses[original].loss_sum:.9g}, off by {off[copy]:.3g} > {bound_text(bound)}; "
        f"{len(wrong)} of {len(off)} differ",
        where=seat.where("repetition", evidence.last_stage)
        | {"document": copy, "original": original, "number": seat.number, "documents": wrong},
        measured=off[copy],
        bound=stated(bound),
    )
