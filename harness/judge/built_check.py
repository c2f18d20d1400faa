"""Checks that a cell trained the model of its control. Before all checks: numbers of another model prove nothing."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from harness.core.cell.built import Difference, differences, listed
from harness.core.run.records import BuiltSeen, RankRecord
from harness.core.text.counts import counted
from harness.judge.evidence.cell_evidence import CellEvidence
from harness.judge.locations import numbered

_PARTS = {"model": "model", "constructor": "model", "ddp": "DDP configuration", "optimizer": "optimizer"}


def built_problem(evidence: CellEvidence) -> str:
    """Why nothing of a cell can be compared: what upstream built on its ranks; empty if there is no such reason."""
    records = evidence.records
    problem = _unrecorded(records) or _misplaced(records) or _different_ranks(records)
    return problem or (_different_control(evidence, evidence.control) if evidence.control else "")


def _unrecorded(records: Mapping[int, RankRecord]) -> str:
    for rank, record in sorted(records.items()):
        absent = _PARTS.keys() - {seen.of for seen in record.built}
        if record.steps and (absent or record.built_at is None):
            what = ", ".join(sorted(absent)) or "its place in process groups"
            return f"rank {rank} trained, but did not record with what upstream built its {what}"
    return ""


def _misplaced(records: Mapping[int, RankRecord]) -> str:
    wrong = [rank for rank, record in sorted(records.items()) if record.built_at not in (None, record.place)]
    if not wrong:
        return ""
    first = records[wrong[0]]
    return (
        f"upstream orders the ranks otherwise than the layout: rank {wrong[0]} is {first.built_at}, by the layout "
        f"{first.place}; {len(wrong)} of {counted(len(records), 'rank')} differ"
    )


def _different_ranks(records: Mapping[int, RankRecord]) -> str:
    """Chunks and ranks whose parts of the model were built with different values."""
    seen: dict[str, tuple[int, Mapping[str, str]]] = {}
    for rank, record in sorted(records.items()):
        for item in record.built:
            first, values = seen.setdefault(item.of, (rank, item.values))
            if found := differences(item.values, values):
                where = f"rank {first}" if rank != first else "another chunk of it"
                return f"the ranks have different {_PARTS[item.of]}s: rank {rank} {listed(found, where)}"
    return ""


def _different_control(evidence: CellEvidence, control: CellEvidence) -> str:
    known = {item.of: item for record in control.records.values() for item in record.built}
    # A layer of GPTModel is two of the pattern of HybridModel.
    same_class = evidence.cell.config.model.as_gpt == control.cell.config.model.as_gpt
    records = evidence.records
    for of, part in _PARTS.items():
        for record in records.values():
            for item in _of(of, record):
                found = _differences(item, known[of]) if of in known else []
                if found := [one for one in found if same_class or one.field != "num_layers"]:
                    same = [other for other in sorted(records) if item in records[other].built]
                    on = "" if len(same) == len(records) else f" on {numbered('rank', same)}"
                    return f"the {part} is not the control's{on}: {listed(found, 'control')}"
    return ""


def _of(of: str, record: RankRecord) -> Iterator[BuiltSeen]:
    return (item for item in record.built if item.of == of)


def _differences(one: BuiltSeen, other: BuiltSeen) -> list[Difference]:
    found = differences(one.values, other.values)
    # Of a constructor all arguments are recorded, so one that only one side has is one that the other class lacks.
    return [item for item in found if one.of != "constructor" or None not in item]
