"""The recomputed forward gets the same packed params as the first forward (axis `recompute`).

The loss comes from the first forward and the gradients from the second, so a difference here shows in gradients alone.
"""

from __future__ import annotations

from harness.core.run.records import LayerSeen, RankRecord
from harness.judge.checks.finding import CheckFinding
from harness.judge.diagnosis import fault_classes
from harness.judge.evidence.cell_evidence import CellEvidence
from harness.judge.locations import RankLocation, extent, fold, listed


def check(evidence: CellEvidence) -> list[CheckFinding]:
    wrong = {place: fields for record in evidence.records.values() for place, fields in _differences(record)}
    if not wrong:
        return []
    first, where = fold(list(wrong))
    fields = wrong[first]
    return [
        CheckFinding(
            fault_class=fault_classes.RECOMPUTED,
            message=f"{listed(fields)} in the recomputed forward differs from the first forward, "
            f"at {first}{extent(where)}",
            where={**where, "field": fields[0]},
            measured=fields,
            bound="equal in both forwards",
        )
    ]


def _differences(record: RankRecord) -> list[tuple[RankLocation, list[str]]]:
    """Locations where the two forwards differ, and the fields that do."""
    before = {_key(seen): seen.params for seen in record.layers}
    return [
        (
            RankLocation(record.rank, record.place, "training", seen.step, seen.micro_batch, seen.chunk, seen.layer),
            _fields(record, before[_key(seen)], seen.params),
        )
        for seen in record.recomputed
        if _key(seen) in before and before[_key(seen)] != seen.params
    ]


def _key(seen: LayerSeen) -> tuple[int, int, int, int]:
    return (seen.step, seen.chunk, seen.micro_batch, seen.layer)


def _fields(record: RankRecord, one: int | None, other: int | None) -> list[str]:
    if one is None or other is None:
        return ["packed_seq_params"]
    first, second = vars(record.packed_params[one]), vars(record.packed_params[other])
    return [name for name in first if first[name] != second[name]]
