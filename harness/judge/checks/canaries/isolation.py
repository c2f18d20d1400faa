"""Canary isolation: other tokens in one document of a micro-batch change no other document's loss; needs no control.

Each of two legs changes one document per micro-batch, the first or one in the middle, so that the culprit is known.
"""

from __future__ import annotations

from harness.judge.checks.canaries.shared import change_text, changed_losses, exact_on_cpu
from harness.judge.checks.finding import CheckFinding
from harness.judge.diagnosis import fault_classes
from harness.judge.evidence.cell_evidence import CellEvidence
from harness.judge.evidence.leg_evidence import LegEvidence
from harness.judge.locations import numbered
from harness.judge.stats.distance import bound_text, exactly, stated

LEGS = ("isolation", "isolation-middle")
_LEAST_TOKENS = 4  # a changed document of so many tokens cannot have got the same tokens by chance


def check(evidence: CellEvidence) -> list[CheckFinding]:
    for name in LEGS:
        leg = evidence.legs.get(name)
        findings = (_leaked(evidence, leg) or _unchanged(evidence, leg)) if leg else []
        if findings:
            return findings
    return []


def _leaked(evidence: CellEvidence, leg: LegEvidence) -> list[CheckFinding]:
    bound = exact_on_cpu(evidence, evidence.own.document_loss)
    victims = changed_losses(evidence, leg, bound, skip=leg.leg.changed)
    if not victims:
        return []
    victim, off = next(iter(victims.items()))
    position = leg.positions[victim]
    near = [item for item in leg.leg.changed if _together(leg, item, victim)]
    culprit = near[0] if near else min(leg.leg.changed)
    elsewhere = "" if near else ", in another micro-batch,"
    return [
        CheckFinding(
            fault_class=fault_classes.LEAK,
            message=f"document {culprit} leaks into document {victim} ({position}): tokens of document {culprit}"
            f"{elsewhere} were changed, but {change_text(evidence, leg, victim)}, off by {off:.3g} > "
            f"{bound_text(bound)}; the loss of {len(victims)} of {len(leg.positions) - len(leg.leg.changed)} documents "
            "with the same tokens changed",
            where=position.where(leg.leg.name, evidence.last_stage)
            | {"document": victim, "culprit": culprit, "documents": list(victims)},
            measured=off,
            bound=stated(bound),
        )
    ]


def _together(leg: LegEvidence, one: int, other: int) -> bool:
    here, there = leg.positions[one], leg.positions[other]
    return (here.dp, here.micro_batch) == (there.dp, there.micro_batch)


def _unchanged(evidence: CellEvidence, leg: LegEvidence) -> list[CheckFinding]:
    """Changed documents with an unchanged loss: the model did not compute on the batches of the data path."""
    documents = {item.index: item for item in leg.leg.documents}
    changed = [name for name in leg.positions if name in leg.leg.changed and documents[name].length >= _LEAST_TOKENS]
    before = evidence.document_losses.get(0, {})
    stuck = [
        name
        for name in changed
        if documents[name].loss_tokens
        and name in before
        and name in leg.losses
        and before[name].loss_sum == leg.losses[name].loss_sum
    ]
    if not stuck:
        return []
    return [
        CheckFinding(
            fault_class=fault_classes.TOKEN_CONTENT,
            message=f"{numbered('document', stuck)} got other tokens, but the loss is the same, bit for bit: the new "
            "tokens did not reach the model",
            where=leg.positions[stuck[0]].where(leg.leg.name, evidence.last_stage) | {"document": stuck[0]},
            measured=leg.losses[stuck[0]].loss_sum,
            bound=exactly("a different loss", "other tokens have a different loss"),
        )
    ]
