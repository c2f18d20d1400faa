"""The auxiliary loss of every router (step 0) and its weight in gradients equal the harness's own arithmetic."""

from __future__ import annotations

import math

from harness.core.cell.model import MoeConfig
from harness.judge.checks.finding import CheckFinding
from harness.judge.diagnosis import fault_classes
from harness.judge.diagnosis.known_issues import ROWS_AS_ONE
from harness.judge.diagnosis.ratios import factors_of, ratio_name, stated_ratio
from harness.judge.evidence.cell_evidence import CellEvidence
from harness.judge.evidence.moe_router import RouterWhole, counted_rows, own_aux_loss, own_weight, routers
from harness.judge.stats.distance import beyond, bound_text, distance


def check(evidence: CellEvidence) -> list[CheckFinding]:
    moe = evidence.cell.config.model.moe
    if moe is None or not moe.balanced or not evidence.first_step_whole:
        return []
    wholes = routers(evidence)
    return _values(evidence, moe, wholes) or _weights(evidence, moe, wholes)


def _values(evidence: CellEvidence, moe: MoeConfig, wholes: list[RouterWhole]) -> list[CheckFinding]:
    bound = evidence.tolerances.aux_loss
    for router in wholes:
        right = own_aux_loss(moe, counted_rows(router, moe.padding_mask))
        found = math.nan if router.aux_loss is None else router.aux_loss
        if not math.isnan(found) and not beyond(distance(found, right, bound), bound):
            continue
        why = _as_if(evidence, moe, router, found)
        off = distance(found, right, bound)
        value = "not recorded" if router.aux_loss is None else f"{found:.9g}"
        message = (
            f"{moe.aux_loss} of layer {router.layer}, micro-batch {router.micro_batch}: {value}, the harness computes "
            f"{right:.9g}, off by {off:.3g} > {bound_text(bound)}"
        )
        return [
            CheckFinding(
                fault_class=fault_classes.ROUTER,
                message=f"{message}; {why}" if why else message,
                where=_where(router) | {"micro_batch": router.micro_batch, "dp": router.dp},
                measured=off,
                bound=bound.value,
            )
        ]
    return []


def _as_if(evidence: CellEvidence, moe: MoeConfig, router: RouterWhole, found: float) -> str:
    """The known mistake that gives this value, if any."""
    bound = evidence.tolerances.aux_loss
    rows, every = counted_rows(router, moe.padding_mask), counted_rows(router, False)
    other = {
        "that is the value with padding tokens counted": own_aux_loss(moe, every),
        f"that is the value of its {len(rows)} {ROWS_AS_ONE}": own_aux_loss(moe, rows, kind="aux_loss"),
        f"that is the value of its {len(rows)} {ROWS_AS_ONE}, with padding tokens counted": own_aux_loss(
            moe, every, kind="aux_loss"
        ),
    }
    return next((why for why, value in other.items() if distance(found, value, bound) <= bound.value), "")


def _weights(evidence: CellEvidence, moe: MoeConfig, wholes: list[RouterWhole]) -> list[CheckFinding]:
    """Compares sums over the micro-batches of a layer, since a wrong factor is the same in all."""
    bound = evidence.tolerances.aux_loss
    layers: dict[int, tuple[RouterWhole, float, float]] = {}
    for router in wholes:
        rows = counted_rows(router, moe.padding_mask)
        _, found, right = layers.get(router.layer, (router, 0.0, 0.0))
        right += own_aux_loss(moe, rows) * own_weight(evidence, rows)
        layers[router.layer] = (router, found + (router.aux_weighted or 0.0), right)
    wrong = [item for item in layers.values() if not distance(item[1], item[2], bound) <= bound.value]
    if not wrong:
        return []
    router, found, right = wrong[0]
    ratio = found / right if right else math.nan
    name = ratio_name(ratio, factors_of(evidence, 0), evidence.tolerances.ratio_screen)
    off = distance(found, right, bound)
    return [
        CheckFinding(
            fault_class=f"{fault_classes.NORMALISATION}: {name}" if name else fault_classes.GRADIENT_REDUCTION,
            message=f"gradients of {moe.aux_loss} in layer {router.layer}: weighted sum {found:.9g}, the harness "
            f"computes {right:.9g}, off by {off:.3g} > {bound_text(bound)}; {stated_ratio(name or ratio)} "
            f"{len(wrong)} of {len(layers)} layers differ",
            where=_where(router) | ({"ratio": name} if name else {}),
            measured=off,
            bound=bound.value,
        )
    ]


def _where(router: RouterWhole) -> dict[str, int]:
    return {"stage": router.stage, "layer": router.layer, "step": 0}
