"""The z-loss of every router (step 0) and its weight in gradients equal the harness's own arithmetic."""

from __future__ import annotations

from harness.judge.checks.experts.shared import RouterLoss, wrong
from harness.judge.checks.finding import CheckFinding
from harness.judge.evidence.cell_evidence import CellEvidence
from harness.judge.evidence.moe_router import counted_rows, own_z_loss


def check(evidence: CellEvidence) -> list[CheckFinding]:
    moe = evidence.cell.config.model.moe
    if moe is None or not moe.z_loss_coeff or not evidence.first_step_whole:
        return []
    loss = RouterLoss(
        name="z_loss",
        value="z_loss",
        weighted="z_weighted",
        masked=moe.padding_mask,
        own=lambda router: own_z_loss(moe, counted_rows(router, moe.padding_mask)),
    )
    return wrong(evidence, loss)
