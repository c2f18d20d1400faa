"""Shared by the canary checks: documents whose loss changed in a leg, and the bound for that."""

from __future__ import annotations

import math
from collections.abc import Collection

from harness.core.tolerances import Bound
from harness.judge.evidence.cell_evidence import CellEvidence
from harness.judge.evidence.leg_evidence import LegEvidence
from harness.judge.stats.distance import beyond, distance

EXACT = Bound(value=0.0, origin="on the CPU the same operations on the same numbers agree bit for bit")


def exact_on_cpu(evidence: CellEvidence, otherwise: Bound, *, same_tokens: bool = False) -> Bound:
    """EXACT on the CPU for the same kernels on operands of the same shape; else `otherwise`.

    With experts, changed tokens change how many each expert gets, so shapes are the same only with the `same_tokens`.
    """
    devices = {record.environment.get("device", "cpu") for record in evidence.records.values()}
    shapes = same_tokens or evidence.cell.config.model.moe is None
    return EXACT if shapes and devices == {"cpu"} else otherwise


def changed_losses(
    evidence: CellEvidence, leg: LegEvidence, bound: Bound, skip: Collection[int] = ()
) -> dict[int, float]:
    """Document -> distance, where the loss in the leg differs from that in step 0; in the order of the leg's packing.

    Leaves out documents in `skip`, and losses that are absent or not finite.
    """
    before = evidence.document_losses.get(0, {})
    found = {}
    for document in leg.positions:
        old, new = before.get(document), leg.losses.get(document)
        if document in skip or old is None or new is None:
            continue
        off = distance(new.loss_sum, old.loss_sum, bound)
        if math.isfinite(old.loss_sum) and math.isfinite(new.loss_sum) and beyond(off, bound):
            found[document] = off
    return found


def change_text(evidence: CellEvidence, leg: LegEvidence, document: int) -> str:
    """E.g. 'the loss sum of document 1 changed from 17.25 to 17.5'."""
    before, after = evidence.document_losses[0][document].loss_sum, leg.losses[document].loss_sum
    return f"the loss sum of document {document} changed from {before!r} to {after!r}"
