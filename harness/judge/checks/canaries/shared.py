"""Shared by the canary checks: documents with a loss that a leg must not change, and the bound for that."""

from __future__ import annotations

import math
from collections.abc import Collection

from harness.core.tolerances import Bound
from harness.judge.evidence.cell_evidence import CellEvidence
from harness.judge.evidence.leg_evidence import LegEvidence
from harness.judge.stats.distance import beyond, distance

EXACT = Bound(value=0.0, origin="on the CPU what a number depends on is the same, bit by bit")


def same_kernels(evidence: CellEvidence, otherwise: Bound, *, same_tokens: bool = False) -> Bound:
    """The bound for numbers that the same kernels computed on operands of the same shape; `otherwise` on a GPU.

    Experts get another number of tokens when some are changed: there only the `same_tokens` have the same shapes.
    """
    devices = {record.environment.get("device", "cpu") for record in evidence.records.values()}
    shapes = same_tokens or evidence.cell.config.model.moe is None
    return EXACT if shapes and devices == {"cpu"} else otherwise


def moved(evidence: CellEvidence, leg: LegEvidence, bound: Bound, spared: Collection[int] = ()) -> dict[int, float]:
    """Distances of the documents with another loss in the leg than in step 0, in the order of the leg's packing.

    `spared` are not looked at, nor losses that are not finite or not there.
    """
    before = evidence.document_losses.get(0, {})
    found = {}
    for document in leg.seats:
        old, new = before.get(document), leg.losses.get(document)
        if document in spared or old is None or new is None:
            continue
        off = distance(new.loss_sum, old.loss_sum, bound)
        if math.isfinite(old.loss_sum) and math.isfinite(new.loss_sum) and beyond(off, bound):
            found[document] = off
    return found


def change_text(evidence: CellEvidence, leg: LegEvidence, document: int) -> str:
    """E.g. 'its loss sum went from 17.25 to 17.5'."""
    before, after = evidence.document_losses[0][document].loss_sum, leg.losses[document].loss_sum
    return f"its loss sum went from {before!r} to {after!r}"
