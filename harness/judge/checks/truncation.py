"""Canary truncation: documents that are too long keep their head, and labels and masks that fit it; no model runs."""

from __future__ import annotations

from harness.judge import fault_classes
from harness.judge.checks.tokens_placed import FIELDS
from harness.judge.compare import exactly
from harness.judge.evidence import CellEvidence
from harness.judge.leg_evidence import LegEvidence
from harness.words.outcomes import Finding, Lane
from harness.words.records import TensorSeen


def check(evidence: CellEvidence) -> list[Finding]:
    leg = evidence.legs.get("truncation")
    if leg is None:
        return []
    wrong = [
        (rank, batch.micro_batch, name, seen)
        for rank in sorted(leg.seen)
        for batch in leg.seen[rank].batches
        for name in FIELDS
        if (seen := getattr(batch, name)) is not None and seen.mismatches
    ]
    if not wrong:
        return []
    rank, micro_batch, name, seen = wrong[0]
    ranks = sorted({item[0] for item in wrong})
    return [_finding(leg, rank, micro_batch, name, seen, ranks)]


def _finding(leg: LegEvidence, rank: int, micro_batch: int, field: str, seen: TensorSeen, ranks: list[int]) -> Finding:
    where = leg.at_rank(rank, micro_batch=micro_batch, field=field, ranks=ranks)
    detail = f"its shape is {seen.shape}"
    if seen.first:
        document, token, right, found = seen.first
        where |= {"document": document, "token": token}
        detail = f"token {token} of document {document} is {found}, expected {right}"
    return Finding(
        lane=Lane.NUMERICS,
        check="truncation",
        fault_class=fault_classes.TRUNCATION,
        message=f"with documents that are too long, {seen.mismatches} slots of {field} on rank {rank} differ from the "
        f"plan in micro-batch {micro_batch}: {detail}",
        where=where,
        measured=seen.first[3] if seen.first else seen.mismatches,
        bound=exactly(seen.first[2] if seen.first else 0, "the packing plan"),
    )
