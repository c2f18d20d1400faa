"""Comparison of a loss that acts on routers, at step 0, with the harness's own arithmetic: its value, and its weight in
gradients.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from harness.judge.checks.finding import CheckFinding
from harness.judge.diagnosis import fault_classes
from harness.judge.diagnosis.ratios import factors_of, ratio_name, stated_ratio
from harness.judge.evidence.cell_evidence import CellEvidence
from harness.judge.evidence.moe_router import RouterWhole, counted_rows, own_weight, routers
from harness.judge.stats.distance import beyond, bound_text, distance


@dataclass(frozen=True, kw_only=True)
class RouterLoss:
    """`value`, `weighted`: fields of RouterWhole."""

    name: str
    value: str
    weighted: str
    masked: bool  # whether padding is left out
    own: Callable[[RouterWhole], float]
    mistake: Callable[[RouterWhole, float], str] = lambda router, found: ""  # the known one that gives this value
    together: Callable[[RouterWhole], list[RouterWhole]] = lambda router: [router]  # whose tokens share one loss


def wrong(evidence: CellEvidence, loss: RouterLoss) -> list[CheckFinding]:
    """The first value that differs; if there is none, the first layer with a wrong weight."""
    wholes = routers(evidence)
    return _values(evidence, loss, wholes) or _weights(evidence, loss, wholes)


def _values(evidence: CellEvidence, loss: RouterLoss, wholes: list[RouterWhole]) -> list[CheckFinding]:
    bound = evidence.own.aux_loss
    for router in wholes:
        right, known = loss.own(router), getattr(router, loss.value)
        found = math.nan if known is None else known
        if not math.isnan(found) and not beyond(distance(found, right, bound), bound):
            continue
        why = loss.mistake(router, found)
        off = distance(found, right, bound)
        value = "not recorded" if known is None else f"{found:.9g}"
        message = (
            f"{loss.name} of layer {router.layer}, micro-batch {router.micro_batch}: {value}, the harness computes "
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


def _weights(evidence: CellEvidence, loss: RouterLoss, wholes: list[RouterWhole]) -> list[CheckFinding]:
    """Compares sums over the micro-batches of a layer, since a wrong factor is the same in all."""
    bound = evidence.own.aux_loss
    layers: dict[int, tuple[RouterWhole, float, float]] = {}
    for router in wholes:
        _, found, right = layers.get(router.layer, (router, 0.0, 0.0))
        counted = [counted_rows(one, loss.masked) for one in loss.together(router)]
        right += loss.own(router) * sum(own_weight(evidence, rows) for rows in counted)
        layers[router.layer] = (router, found + (getattr(router, loss.weighted) or 0.0), right)
    differing = [item for item in layers.values() if not distance(item[1], item[2], bound) <= bound.value]
    if not differing:
        return []
    router, found, right = differing[0]
    ratio = found / right if right else math.nan
    name = ratio_name(ratio, factors_of(evidence, 0), evidence.tolerances.ratio_screen)
    off = distance(found, right, bound)
    return [
        CheckFinding(
            fault_class=f"{fault_classes.NORMALISATION}: {name}" if name else fault_classes.GRADIENT_REDUCTION,
            message=f"gradients of {loss.name} in layer {router.layer}: weighted sum {found:.9g}, the harness "
            f"computes {right:.9g}, off by {off:.3g} > {bound_text(bound)}; {stated_ratio(name or ratio)} "
            f"{len(differing)} of {len(layers)} layers differ",
            where=_where(router) | ({"ratio": name} if name else {}),
            measured=off,
            bound=bound.value,
        )
    ]


def _where(router: RouterWhole) -> dict[str, int]:
    return {"stage": router.stage, "layer": router.layer, "step": 0}
