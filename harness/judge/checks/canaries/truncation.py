"""Canary truncation: documents that are too long keep their head, with its labels and masks; no model runs.

Packed params must be those of the truncated documents.
"""

from __future__ import annotations

from harness.core.packing.arithmetic import PackedParams
from harness.core.packing.fields import BATCH
from harness.core.run.records import BatchSeen, TensorSeen
from harness.judge.checks.finding import CheckFinding
from harness.judge.diagnosis import fault_classes
from harness.judge.evidence.cell_evidence import CellEvidence
from harness.judge.evidence.leg_evidence import LegEvidence
from harness.judge.evidence.packed_params import FieldProblem, form_problems, value_problems
from harness.judge.stats.distance import exactly


def check(evidence: CellEvidence) -> list[CheckFinding]:
    leg = evidence.legs.get("truncation")
    if leg is None:
        return []
    wrong = [
        (rank, batch.micro_batch, name, seen)
        for rank in sorted(leg.seen)
        for batch in leg.seen[rank].batches
        for name in BATCH
        if (seen := getattr(batch, name)) is not None and seen.mismatches
    ]
    if not wrong:
        return _params(evidence, leg)
    rank, micro_batch, name, seen = wrong[0]
    ranks = sorted({item[0] for item in wrong})
    return [_finding(leg, rank, micro_batch, name, seen, ranks)]


def _params(evidence: CellEvidence, leg: LegEvidence) -> list[CheckFinding]:
    """The first field of packed params, by rank and micro-batch, that differs from the leg's packing."""
    style = leg.config.style
    for rank in sorted(leg.seen):
        record = evidence.records[rank]
        device = record.environment.get("torch_device")
        for batch in leg.seen[rank].batches:
            truth = _truth(leg, rank, batch)
            if truth is None or batch.params is None:
                continue
            params = record.packed_params[batch.params]
            wrong = [*value_problems(params, truth, style), *form_problems(params, style, device, evidence.layout.cp)]
            if wrong:
                return [_params_finding(leg, rank, batch.micro_batch, wrong[0])]
    return []


def _truth(leg: LegEvidence, rank: int, batch: BatchSeen) -> PackedParams | None:
    planned = leg.plan[leg.config.layout.coordinates(rank).dp]
    return planned[batch.micro_batch].params() if 0 <= batch.micro_batch < len(planned) else None


def _params_finding(leg: LegEvidence, rank: int, micro_batch: int, wrong: FieldProblem) -> CheckFinding:
    name = f"{wrong.field} of {wrong.tensor}" if wrong.tensor else wrong.field
    return CheckFinding(
        fault_class=fault_classes.TRUNCATION,
        message=f"with documents that are too long, {name} on rank {rank} is {wrong.measured} in micro-batch "
        f"{micro_batch}, expected {wrong.expected}",
        where=leg.at_rank(rank, micro_batch=micro_batch, field=wrong.field),
        measured=wrong.measured,
        bound=wrong.expected,
    )


def _finding(
    leg: LegEvidence, rank: int, micro_batch: int, field: str, seen: TensorSeen, ranks: list[int]
) -> CheckFinding:
    where = leg.at_rank(rank, micro_batch=micro_batch, field=field, ranks=ranks)
    detail = f"its shape is {seen.shape}"
    if seen.first:
        document, token, right, found = seen.first
        where |= {"document": document, "token": token}
        detail = f"token {token} of document {document} is {found}, expected {right}"
    return CheckFinding(
        fault_class=fault_classes.TRUNCATION,
        message=f"with documents that are too long, {seen.mismatches} slots of {field} on rank {rank} differ from the "
        f"plan in micro-batch {micro_batch}: {detail}",
        where=where,
        measured=seen.first[3] if seen.first else seen.mismatches,
        bound=exactly(seen.first[2] if seen.first else 0, "the packing plan"),
    )
