"""The gradient norm before clipping equals the reference's on every rank; a recognised ratio is named.

A control with other rows in its micro-batches has other gradients. Then the bound of step 0 is coarse, and finds a
factor of the layout. With an auxiliary loss the norm may only be too large: losses of routers count slots, of which the
control has more, so they may outweigh its loss. There is no bound with a z-loss, whose effect is larger still. And the
ranks are compared with each other: each holds the norm over all ranks.
"""

from __future__ import annotations

import math
from collections.abc import Collection

from harness.core.tolerances import Bound
from harness.judge.checks.finding import CheckFinding
from harness.judge.diagnosis import fault_classes
from harness.judge.diagnosis.ratios import factors_of, ratio_name
from harness.judge.evidence.cell_evidence import CellEvidence
from harness.judge.stats.distance import beyond, bound_text, distance, exactly, stated

_MOST_WEIGHT = 0.1  # of prediction layers
_OTHER_ROWS = Bound(value=1 / 3, origin="clean cells whose control has other rows differ by at most 2 %")


def other_rows_bound(evidence: CellEvidence) -> Bound | None:
    """The coarse bound of a norm whose control has other rows; None if there is none."""
    config = evidence.cell.config
    moe, mtp = config.model.moe, config.model.mtp
    unbounded = config.model.drops or (moe is not None and moe.z_loss_coeff > 0)
    unbounded = unbounded or (mtp is not None and mtp.loss_factor > _MOST_WEIGHT)
    unbounded = unbounded or (config.model.router_losses and not _fewer_slots(evidence))
    return _OTHER_ROWS if evidence.by_step and config.model.by_rows and not unbounded else None


def _fewer_slots(evidence: CellEvidence) -> bool:
    """Whether the cell's rows have at most as many slots as its control's, in step 0."""
    cell, control = (
        sum(truth.batch.slots for replica in one.plan[0] for truth in replica)
        for one in (evidence, evidence.control or evidence)
    )
    return cell <= control


def check(evidence: CellEvidence) -> list[CheckFinding]:
    if evidence.reference is None:
        return []
    if evidence.same_rows:
        return _against(evidence, evidence.reference, evidence.origin, evidence.steps)
    coarse = evidence.bound("grad_norm", 0) if evidence.same_first_step else other_rows_bound(evidence)
    found = (
        _against(evidence, evidence.reference, evidence.origin, range(1), coarse)
        if coarse and 0 in evidence.steps
        else []
    )
    return found or _against(evidence, evidence, "the first rank's", evidence.steps)


def _against(
    evidence: CellEvidence, other: CellEvidence, origin: str, steps: Collection[int], coarse: Bound | None = None
) -> list[CheckFinding]:
    wrong = []
    norms = grad_norms(other)
    for step, right in ((step, norms[step]) for step in steps if step in norms):
        bound = coarse or (
            evidence.own_bound("grad_norm", step) if other is evidence else evidence.bound("grad_norm", step)
        )
        if bound is None:
            break  # rounding decides
        seen_any = False
        for record, seen in evidence.step_records(step):
            found = seen.grad_norm
            seen_any |= found is not None
            if coarse and evidence.cell.config.model.router_losses and found is not None and found <= right:
                continue
            if found is not None and math.isfinite(found) and beyond(distance(found, right, bound), bound):
                wrong.append((step, record.rank, record.place.pp, found, right, bound))
        if step in evidence.finished_steps and not seen_any:
            return [_missing(step)]
    if not wrong:
        return []
    step, rank, stage, found, right, bound = wrong[0]
    differing = sorted({item[0] for item in wrong})
    ratio = ratio_name(found / right, factors_of(evidence, step), evidence.tolerances.ratio_screen) if right else None
    measured = distance(found, right, bound)
    named = f"; the ratio is {ratio}" if ratio else f"; the ratio is {found / right:.4g}" if right else ""
    return [
        CheckFinding(
            fault_class=f"{fault_classes.NORMALISATION}: {ratio}" if ratio else fault_classes.GRADIENT_REDUCTION,
            message=f"gradient norm of step {step} on rank {rank}: {found:.9g}, {origin} {right:.9g}, off by "
            f"{measured:.3g} > {bound_text(bound)}{named}; {len(differing)} of {len(evidence.steps)} steps differ",
            where={"stage": stage, "rank": rank, "step": step} | ({"ratio": ratio} if ratio else {}),
            measured=measured,
            bound=stated(bound),
        )
    ]


def _missing(step: int) -> CheckFinding:
    return CheckFinding(
        fault_class=fault_classes.UNKNOWN,
        message=f"no rank recorded a gradient norm in step {step}",
        where={"step": step},
        measured=None,
        bound=exactly("recorded", "every finished step has one"),
    )


def grad_norms(evidence: CellEvidence) -> dict[int, float]:
    """Step -> gradient norm of the first rank that recorded one."""
    norms: dict[int, float] = {}
    for step in evidence.finished_steps:
        for _, seen in evidence.step_records(step):
            if seen.grad_norm is not None:
                norms.setdefault(step, seen.grad_norm)
    return norms
