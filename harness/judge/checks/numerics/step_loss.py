"""The loss of every step (sum over its unmasked labels, all ranks) equals the reference's."""

from __future__ import annotations

import math

from harness.judge.checks.finding import CheckFinding
from harness.judge.diagnosis import fault_classes
from harness.judge.diagnosis.ratios import factors_of, ratio_name
from harness.judge.evidence.cell_evidence import CellEvidence
from harness.judge.stats.distance import beyond, bound_text, distance, stated


def check(evidence: CellEvidence) -> list[CheckFinding]:
    wrong = []
    for step, right in step_losses(evidence.reference).items() if evidence.reference else ():
        if step and not evidence.same_rows:
            break  # different gradients have moved the weights
        if (bound := evidence.bound("step_loss", step)) is None:
            break  # rounding decides
        for rank, found in _recorded(evidence, step):
            if found is None or (math.isfinite(found) and beyond(distance(found, right, bound), bound)):
                wrong.append((step, rank, found, right, bound))
    if not wrong:
        return []
    step, rank, found, right, bound = wrong[0]
    steps = sorted({item[0] for item in wrong})
    ratio = None
    if found is not None and right:
        ratio = ratio_name(found / right, factors_of(evidence, step), evidence.tolerances.ratio_screen)
    measured = math.nan if found is None else distance(found, right, bound)
    named = f"; the ratio is {ratio}" if ratio else ""
    return [
        CheckFinding(
            fault_class=f"{fault_classes.NORMALISATION}: {ratio}" if ratio else fault_classes.UNKNOWN,
            message=f"loss sum of step {step} on rank {rank}: {_text(found)}, {evidence.origin} {right:.9g}, off by "
            f"{measured:.3g} > {bound_text(bound)}{named}; {len(steps)} of {len(evidence.steps)} steps differ",
            where={"stage": evidence.last_stage, "rank": rank, "step": step} | ({"ratio": ratio} if ratio else {}),
            measured=measured,
            bound=stated(bound),
        )
    ]


def _recorded(evidence: CellEvidence, step: int) -> list[tuple[int, float | None]]:
    """(rank, loss sum) of the ranks of the last stage that recorded one; if none did, the first rank with None."""
    seen = [(record.rank, item.loss_sum) for record, item in evidence.step_records(step, pp=evidence.last_stage)]
    return [item for item in seen if item[1] is not None] or seen[:1]


def _text(value: float | None) -> str:
    return "not recorded" if value is None else f"{value:.9g}"


def step_losses(evidence: CellEvidence) -> dict[int, float]:
    """Step -> loss sum of the first rank of the last stage that recorded one; other steps are left out."""
    losses: dict[int, float] = {}
    for step in evidence.finished_steps:
        for _, seen in evidence.step_records(step, pp=evidence.last_stage):
            if seen.loss_sum is not None:
                losses.setdefault(step, seen.loss_sum)
    return losses
