"""The probable fault class, from which documents differ."""

from __future__ import annotations

from collections.abc import Collection

from harness.judge.checks.canaries import changed_losses, exact_on_cpu
from harness.judge.diagnosis import fault_classes
from harness.judge.evidence.cell_evidence import CellEvidence


def documents_pattern(evidence: CellEvidence, documents: Collection[int], step: int) -> str:
    """Return TRUNCATION if all were truncated; else CP_LAYOUT if cp > 1.

    If none is first in its stream: LEAK, since attention is causal, or POSITIONS if canary isolation saw no leak.
    """
    homes = [evidence.homes[step][document] for document in documents if document in evidence.homes[step]]
    if homes and all(home.truncated for home in homes):
        return fault_classes.TRUNCATION
    if homes and evidence.packed and not any(home.first for home in homes):
        return fault_classes.POSITIONS if _isolated(evidence) else fault_classes.LEAK
    return fault_classes.CP_LAYOUT if evidence.layout.cp > 1 else fault_classes.UNKNOWN


def _isolated(evidence: CellEvidence) -> bool:
    """Return whether canary isolation ran, and its changes of single documents changed no other document's loss."""
    legs = [leg for name, leg in evidence.legs.items() if name.startswith("isolation")]
    bound = exact_on_cpu(evidence, evidence.own.document_loss)
    return bool(legs) and not any(changed_losses(evidence, leg, bound, skip=leg.leg.changed) for leg in legs)
