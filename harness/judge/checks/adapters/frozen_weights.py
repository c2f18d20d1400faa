"""With adapters, nothing else trains: every other weight has no gradient, and the same bytes after the last step.

A part of a cell that continues in the same layout has loaded the bytes that the first part had.
"""

from __future__ import annotations

from collections.abc import Iterator

from harness.core.peft import is_adapter
from harness.core.run.records import RankRecord
from harness.judge.checks.finding import CheckFinding
from harness.judge.diagnosis import fault_classes
from harness.judge.evidence.cell_evidence import CellEvidence
from harness.judge.locations import numbered, where_of
from harness.judge.stats.distance import exactly


def check(evidence: CellEvidence) -> list[CheckFinding]:
    if evidence.cell.config.model.peft is None:
        return []
    found = [*_wrong(evidence), *_loaded(evidence)]
    if not found:
        return []
    record, name, what = found[0]
    names = list(dict.fromkeys(item[1] for item in found))
    ranks = sorted({item[0].rank for item in found})
    return [
        CheckFinding(
            fault_class=fault_classes.FROZEN,
            message=f"{name}, which is no adapter's, {what} on rank {record.rank} ({record.place}); "
            f"wrong: {numbered('weight', names)} on {numbered('rank', ranks)}",
            where=where_of(record.place, rank=record.rank, parameter=name) | {"ranks": ranks},
            measured=len(names),
            bound=exactly(0, "only adapters train"),
        )
    ]


def _wrong(evidence: CellEvidence) -> Iterator[tuple[RankRecord, str, str]]:
    """(record, name, what) of every weight that is not left alone."""
    for rank in sorted(evidence.records):
        record = evidence.records[rank]
        yield from ((record, seen.name, "trains") for seen in record.parameters if not is_adapter(seen.name))
        for frozen in record.frozen:
            if is_adapter(frozen.name):
                continue  # `parameter_gradients` misses it
            if frozen.gradient:
                yield record, frozen.name, "has a gradient"
            elif frozen.after and frozen.after != frozen.before:
                yield record, frozen.name, f"changed by step {evidence.steps[-1]}"


def _loaded(evidence: CellEvidence) -> Iterator[tuple[RankRecord, str, str]]:
    saved = evidence.saved
    if saved is None or saved.layout != evidence.layout:
        return
    for rank in sorted(evidence.records.keys() & saved.records.keys()):
        right = {seen.name: seen.before for seen in saved.records[rank].frozen}
        for seen in evidence.records[rank].frozen:
            if not is_adapter(seen.name) and right.get(seen.name, seen.before) != seen.before:
                yield evidence.records[rank], seen.name, "is loaded with other bytes than it was saved with"
