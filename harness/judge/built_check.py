"""Checks that a cell trained the model that its matrix asks for, and with a model of a plug-in, that of its control.

Before all checks: numbers of another model prove nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from harness.core.cell.axis_values import BUILT_IN_TRAINERS
from harness.core.cell.upstream_config import Difference, asked, differences, listed
from harness.core.run.records import BuiltSeen, RankRecord
from harness.core.text import counted
from harness.judge.evidence.cell_evidence import CellEvidence
from harness.judge.locations import numbered

_OFF = ("null", "false", "0", "0.0", '"vanilla"')
_PARTS = {
    "model": "model",
    "constructor": "model",
    "tower": "image tower",
    "ddp": "DDP configuration",
    "optimizer": "optimizer",
}


def built_problem(evidence: CellEvidence) -> str:
    """Why nothing of a cell can be compared: what upstream built on its ranks; empty if there is no such reason."""
    records = evidence.records
    problem = _unrecorded(evidence) or _misplaced(records) or _different_ranks(records)
    if evidence.cell.config.model.builder:
        return problem or (_not_the_controls(evidence, evidence.control) if evidence.control else "")
    return problem or _not_asked(evidence)


def _unrecorded(evidence: CellEvidence) -> str:
    """What a rank that trained did not record; the image tower is on the first stage alone."""
    has_tower = evidence.cell.config.model.vision is not None
    for rank, record in sorted(evidence.records.items()):
        elsewhere = set() if has_tower and record.place.pp == 0 else {"tower"}
        absent = _PARTS.keys() - {seen.of for seen in record.built} - elsewhere
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


def _not_asked(evidence: CellEvidence) -> str:
    """Parts that upstream built with other values than the cell asks for, or than upstream's defaults."""
    wanted = asked(evidence.cell.config)

    def found(item: BuiltSeen) -> list[Difference]:
        if item.of == "constructor" and not item.values and evidence.cell.config.trainer not in BUILT_IN_TRAINERS:
            return []  # a plug-in may build its model before the harness keeps the arguments of models
        named = differences(item.values, wanted[item.of])
        # A release that lacks a field cannot have it on.
        return [one for one in named if one.one is not None or one.other not in _OFF]

    return _first(evidence, found, "matrix's", "asked")


def _not_the_controls(evidence: CellEvidence, control: CellEvidence) -> str:
    known = {item.of: item.values for record in control.records.values() for item in record.built}
    return _first(
        evidence, lambda item: differences(item.values, known.get(item.of, item.values)), "control's", "control"
    )


def _first(evidence: CellEvidence, found: Callable[[BuiltSeen], list[Difference]], whose: str, other: str) -> str:
    """The first part that is not as it should be, with the ranks that have it unless all do."""
    records = evidence.records
    for of, part in _PARTS.items():
        for item in (item for record in records.values() for item in record.built if item.of == of):
            if named := found(item):
                same = [rank for rank, record in sorted(records.items()) if item in record.built]
                on = "" if len(same) == len(records) else f" on {numbered('rank', same)}"
                return f"the {part} is not the {whose}{on}: {listed(named, other)}"
    return ""
