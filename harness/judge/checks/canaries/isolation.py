"""Canary isolation: other tokens in one document of a micro-batch change no other document's loss; needs no reference.

Two legs change one document per micro-batch each, the first and one in the middle, so that the culprit is known.
"""

from __future__ import annotations

from harness.judge.checks.canaries.shared import change_text, moved, same_kernels
from harness.judge.checks.finding import CheckFinding
from harness.judge.diagnosis import fault_classes
from harness.judge.evidence.cell_evidence import CellEvidence
from harness.judge.evidence.leg_evidence import LegEvidence
from harness.judge.locations import counted
from harness.judge.stats.distance import bound_text, exactly, stated

LEGS = ("isolation", "isolation-middle")
SURE = 4  # tokens from which on a changed document cannot have been given the same tokens by chance


def check(evidence: CellEvidence) -> list[CheckFinding]:
    for name in LEGS:
        leg = evidence.legs.get(name)
        findings = (_leaked(evidence, leg) or _unmoved(evidence, leg)) if leg else []
        if findings:
            return findings
    return []


def _leaked(evidence: CellEvidence, leg: LegEvidence) -> list[CheckFinding]:
    bound = same_kernels(evidence, evidence.tolerances.document_loss)
    victims = moved(evidence, leg, bound, spared=leg.leg.changed)
    if not victims:
        return []
    victim, off = next(iter(victims.items()))
    seat = leg.seats[victim]
    near = [item for item in leg.leg.changed if _together(leg, item, victim)]
    culprit = near[0] if near else min(leg.leg.changed)
    where = "of its micro-batch" if near else "of another micro-batch"
    return [
        CheckFinding(
            fault_class=fault_classes.LEAK,
            message=f"document {culprit} leaks into document {victim}: only the tokens of the former were changed, and "
            f"of the latter, document {seat.number} {where} (micro-batch {seat.micro_batch} of replica {seat.dp}), "
            f"{change_text(evidence, leg, victim)}, off by {off:.3g} > {bound_text(bound)}; "
            f"{len(victims)} of {len(leg.seats) - len(leg.leg.changed)} unchanged documents moved",
            where=seat.where(leg.leg.name, evidence.last_stage)
            | {"document": victim, "culprit": culprit, "documents": list(victims)},
            measured=off,
            bound=stated(bound),
        )
    ]


def _together(leg: LegEvidence, one: int, other: int) -> bool:
    here, there = leg.seats[one], leg.seats[other]
    return (here.dp, here.micro_batch) == (there.dp, there.micro_batch)


def _unmoved(evidence: CellEvidence, leg: LegEvidence) -> list[CheckFinding]:
    """Changed documents with an unchanged loss: the model did not compute on the input of the data path."""
    documents = {item.index: item for item in leg.leg.documents}
    sure = [name for name in leg.seats if name in leg.leg.changed and documents[name].length >= SURE]
    before = evidence.document_losses.get(0, {})
    stuck = [
        name
        for name in sure
        if not documents[name].masked
        and name in before
        and name in leg.losses
        and before[name].loss_sum == leg.losses[name].loss_sum
    ]
    if not stuck:
        return []
    return [
        CheckFinding(
            fault_class=fault_classes.TOKEN_CONTENT,
            message=f"{counted('document', stuck)} got other tokens, but the loss is bit by bit what it was: the model "
            "did not get them",
            where=leg.seats[stuck[0]].where(leg.leg.name, evidence.last_stage) | {"document": stuck[0]},
            measured=leg.losses[stuck[0]].loss_sum,
            bound=exactly("another loss", "other tokens have another loss"),
        )
    ]
