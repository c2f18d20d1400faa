"""The auxiliary loss of every router (step 0) and its weight in gradients equal the harness's own arithmetic."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from harness.core.cell.model import GLOBAL_AUX, MoeConfig
from harness.judge.checks.experts.shared import RouterLoss, wrong
from harness.judge.checks.finding import CheckFinding
from harness.judge.diagnosis.known_issues import ROWS_AS_ONE
from harness.judge.evidence.cell_evidence import CellEvidence
from harness.judge.evidence.moe_router import RouterWhole, counted_rows, own_aux_loss, own_global_aux_loss, routers
from harness.judge.stats.distance import distance


def check(evidence: CellEvidence) -> list[CheckFinding]:
    moe = evidence.cell.config.model.moe
    if moe is None or not moe.balanced or not evidence.first_step_whole:
        return []
    loss = RouterLoss(
        name=moe.aux_loss,
        value="aux_loss",
        weighted="aux_weighted",
        masked=moe.padding_mask,
        own=lambda router: own_aux_loss(moe, counted_rows(router, moe.padding_mask)),
        mistake=partial(_as_if, evidence, moe),
    )
    return wrong(evidence, _over_replicas(evidence, moe, loss) if moe.aux_loss == GLOBAL_AUX else loss)


def _over_replicas(evidence: CellEvidence, moe: MoeConfig, loss: RouterLoss) -> RouterLoss:
    """The same of the loss over all replicas, of which each computes its share."""
    wholes = routers(evidence)

    def together(router: RouterWhole) -> list[RouterWhole]:
        place = (router.layer, router.micro_batch)
        return [one for one in wholes if (one.layer, one.micro_batch) == place]

    own = partial(own_global_aux_loss, moe, wholes=wholes)
    return replace(loss, own=own, mistake=lambda router, found: "", together=together)


def _as_if(evidence: CellEvidence, moe: MoeConfig, router: RouterWhole, found: float) -> str:
    """The known mistake that gives this value, if any."""
    bound = evidence.own.aux_loss
    rows, every = counted_rows(router, moe.padding_mask), counted_rows(router, False)
    other = {
        "that is the value with padding tokens counted": own_aux_loss(moe, every),
        f"that is the value of its {len(rows)} {ROWS_AS_ONE}": own_aux_loss(moe, rows, kind="aux_loss"),
        f"that is the value of its {len(rows)} {ROWS_AS_ONE}, with padding tokens counted": own_aux_loss(
            moe, every, kind="aux_loss"
        ),
    }
    return next((why for why, value in other.items() if distance(found, value, bound) <= bound.value), "")
