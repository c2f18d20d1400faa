"""Canary order: no document's loss depends on which others share its pack, and in what order; needs no control."""

from __future__ import annotations

from harness.judge.checks.canaries.shared import change_text, changed_losses
from harness.judge.checks.finding import CheckFinding
from harness.judge.diagnosis import fault_classes
from harness.judge.evidence.cell_evidence import CellEvidence
from harness.judge.stats.distance import bound_text, stated


def check(evidence: CellEvidence) -> list[CheckFinding]:
    leg, bound = evidence.legs.get("order"), evidence.own.document_loss
    wrong = changed_losses(evidence, leg, bound) if leg else {}
    if leg is None or not wrong:
        return []
    document, off = next(iter(wrong.items()))
    position, before = leg.positions[document], evidence.homes[0][document]
    later = all(leg.positions[item].number for item in wrong)
    return [
        CheckFinding(
            fault_class=fault_classes.LEAK if later else fault_classes.UNKNOWN,
            message=f"with documents in reverse order, {change_text(evidence, leg, document)}, off by {off:.3g} > "
            f"{bound_text(bound)} ({position}; before in micro-batch {before.micro_batch}); the loss of "
            f"{len(wrong)} of {len(leg.positions)} documents changed",
            where=position.where("order", evidence.last_stage)
            | {"document": document, "number": position.number, "documents": list(wrong)},
            measured=off,
            bound=stated(bound),
        )
    ]
