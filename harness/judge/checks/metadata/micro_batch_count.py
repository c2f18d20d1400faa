"""Every rank runs the planned number of micro-batches per step; otherwise collectives pair wrongly or hang."""

from __future__ import annotations

from harness.core.run.records import RankRecord
from harness.judge.checks.finding import CheckFinding
from harness.judge.diagnosis import fault_classes
from harness.judge.evidence.cell_evidence import CellEvidence
from harness.judge.locations import numbered, where_of


def check(evidence: CellEvidence) -> list[CheckFinding]:
    wrong = []
    for rank in sorted(evidence.records):
        record = evidence.records[rank]
        for step, found in _counts(evidence, record):
            expected = len(evidence.plan[step][record.place.dp]) if step in evidence.steps else 0
            if found != expected:
                wrong.append((step, rank, record, found, expected))
    if not wrong:
        return []
    step, rank, record, found, expected = min(wrong, key=lambda item: item[:2])
    ranks = sorted({item[1] for item in wrong})
    return [
        CheckFinding(
            fault_class=fault_classes.MICRO_BATCHES,
            message=f"rank {rank} ({record.place}) has {found} micro-batches in step {step}, the plan has {expected}; "
            f"wrong on {numbered('rank', ranks)}{_replicas(evidence, step)}",
            where=where_of(record.place, rank=rank, step=step) | {"ranks": ranks},
            measured=found,
            bound=expected,
        )
    ]


def _replicas(evidence: CellEvidence, step: int) -> str:
    """The count of each replica if they differ; gradients are summed over replicas, so all must run the same number."""
    counts: dict[int, set[int]] = {}
    for record in evidence.records.values():
        for number, found in _counts(evidence, record):
            if number == step:
                counts.setdefault(record.place.dp, set()).add(found)
    if len({frozenset(found) for found in counts.values()}) < 2:
        return ""
    texts = [f"replica {dp}: {' or '.join(map(str, sorted(counts[dp])))}" for dp in sorted(counts)]
    return f"; data-parallel replicas differ: {', '.join(texts)}"


def _counts(evidence: CellEvidence, record: RankRecord) -> list[tuple[int, int]]:
    """(step, count) pairs: those the data path planned, then those the training leg ran."""
    planned = enumerate(record.micro_batches, evidence.steps.start)
    return [*planned, *((seen.step, seen.micro_batches) for seen in record.steps)]
