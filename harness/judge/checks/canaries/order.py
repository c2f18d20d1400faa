"""Canary order: no document's loss depends on which others share its pack, and in what order; needs no reference."""

from __future__ import annotations

from harness.judge.checks.canaries.shared import change_text, moved
from harness.judge.checks.finding import CheckFinding
from harness.judge.diagnosis import fault_classes
from harness.judge.evidence.cell_evidence import CellEvidence
from harness.judge.stats.distance import bound_text, stated


def check(evidence: CellEvidence) -> list[CheckFinding]:
    leg, bound = evidence.legs.get("order"), evidence.tolerances.document_loss
    wrong = moved(evidence, leg, bound) if leg else {}
    if leg is None or not wrong:
        return []
    document, off = next(iter(wrong.items()))
    seat, home = leg.seats[document], evidence.homes[0][document]
    later = all(leg.seats[item].number for item in wrong)
    return [
        CheckFinding(
            fault_class=fault_classes.LEAK if later else fault_classes.UNKNOWN,
            message=f"documents came in the reverse order, and of document {document}, before in micro-batch "
            f"{home.micro_batch} and now number {seat.number} of micro-batch {seat.micro_batch} (replica {seat.dp}), "
            f"{change_text(evidence, leg, document)}, off by {off:.3g} > {bound_text(bound)}; {len(wrong)} of "
            f"{len(leg.seats)} documents moved",
            where=seat.where("order", evidence.last_stage)
            | {"document": document, "number": seat.number, "documents": list(wrong)},
            measured=off,
            bound=stated(bound),
        )
    ]
