"""Canary padding: other token ids in the padding change no document's loss and count nowhere; needs no control."""

from __future__ import annotations

from harness.judge.checks.canaries.shared import change_text, changed_losses, exact_on_cpu
from harness.judge.checks.finding import CheckFinding
from harness.judge.diagnosis import fault_classes
from harness.judge.evidence.cell_evidence import CellEvidence
from harness.judge.evidence.leg_evidence import LegEvidence
from harness.judge.stats.distance import bound_text, exactly, stated


def check(evidence: CellEvidence) -> list[CheckFinding]:
    leg = evidence.legs.get("padding")
    return (_changed(evidence, leg) or _counted(evidence, leg)) if leg else []


def _changed(evidence: CellEvidence, leg: LegEvidence) -> list[CheckFinding]:
    bound = exact_on_cpu(evidence, evidence.own.document_loss)
    wrong = changed_losses(evidence, leg, bound)
    if not wrong:
        return []
    document, off = next(iter(wrong.items()))
    position = leg.positions[document]
    return [
        CheckFinding(
            fault_class=fault_classes.PADDING,
            message=f"only the token ids of padding slots were changed, but {change_text(evidence, leg, document)}, "
            f"off by {off:.3g} > {bound_text(bound)} ({position}); the loss of {len(wrong)} of {len(leg.positions)} "
            "documents changed",
            where=position.where("padding", evidence.last_stage) | {"document": document, "documents": list(wrong)},
            measured=off,
            bound=stated(bound),
        )
    ]


def _counted(evidence: CellEvidence, leg: LegEvidence) -> list[CheckFinding]:
    right = sum(batch.loss_tokens for replica in leg.plan for batch in replica)
    if leg.token_count == right:
        return []
    return [
        CheckFinding(
            fault_class=fault_classes.PADDING,
            message=f"only the token ids of padding slots were changed, but now {leg.token_count} tokens count in the "
            f"loss, expected {right}: padding is recognised by its token id",
            where={"stage": evidence.last_stage, "leg": "padding", "step": 0},
            measured=leg.token_count,
            bound=exactly(right, "the packing plan"),
        )
    ]
