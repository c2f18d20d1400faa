"""The workload counted by the data path matches the plan: micro-batches, sum of lengths, sum of squared lengths.

The schedule runs that number of micro-batches, and FLOPs are computed from the sums, which must not depend on the
number of model chunks. Counts are compared exactly, but sums that float32 cannot hold up to its rounding. Data paths
that do not count their work are not compared.
"""

from __future__ import annotations

from harness.core.packing.arithmetic import WORKLOAD_ROUNDING, Workload, workloads
from harness.core.run.records import RankRecord, WorkloadSeen
from harness.judge.checks.finding import CheckFinding
from harness.judge.diagnosis import fault_classes
from harness.judge.diagnosis.ratios import factors_of, ratio_name
from harness.judge.evidence.cell_evidence import CellEvidence
from harness.judge.locations import numbered, where_of

NAMES = {
    "micro_batches": "the number of micro-batches",
    "tokens": "the sum of lengths",
    "squares": "the sum of squared lengths",
}


def check(evidence: CellEvidence) -> list[CheckFinding]:
    if not any(record.workloads for record in evidence.records.values()):
        return []
    steps = [[[truth.batch for truth in replica] for replica in step] for step in evidence.plan]
    truths = [workloads(step) for step in steps]
    return [finding for field in NAMES for finding in _of_field(evidence, field, truths)]


def _of_field(evidence: CellEvidence, field: str, truths: list[list[Workload]]) -> list[CheckFinding]:
    wrong: list[tuple[RankRecord, WorkloadSeen, float, float]] = []
    for rank in sorted(evidence.records):
        record = evidence.records[rank]
        for seen in record.workloads:
            found, expected = getattr(seen, field), getattr(truths[seen.step][record.place.dp], field)
            if not _equal(found, expected):
                wrong.append((record, seen, found, expected))
    if not wrong:
        return []
    record, seen, found, expected = wrong[0]
    ranks = sorted({item[0].rank for item in wrong})
    return [
        CheckFinding(
            fault_class=fault_classes.WORKLOAD,
            message=f"{NAMES[field]} of step {seen.step} is {found:g} on rank {record.rank} ({record.place}), expected "
            f"{expected:g}{_note(evidence, seen.step, field, found, expected)}; wrong on {numbered('rank', ranks)}",
            where=where_of(record.place, rank=record.rank, leg=seen.leg, step=seen.step)
            | {"field": field, "ranks": ranks},
            measured=found,
            bound=expected,
        )
    ]


def _note(evidence: CellEvidence, step: int, field: str, found: float, expected: float) -> str:
    """A known quantity that equals the wrong number, if any."""
    rows = [truth.batch.slots for replica in evidence.plan[step] for truth in replica]
    whole = {"tokens": sum(rows), "squares": sum(slots**2 for slots in rows)}.get(field)
    if evidence.packed and whole is not None and _equal(found, whole):
        return ", as if every pack were one document"
    name = ratio_name(found / expected, factors_of(evidence, step), WORKLOAD_ROUNDING) if expected else None
    return f" ({name})" if name else ""


def _equal(found: float, expected: float) -> bool:
    return abs(found - expected) <= WORKLOAD_ROUNDING * expected
