"""Checks that a cell trained the model that its matrix asks for, and with a model of a plug-in, that of its control.

Before all checks: numbers of another model prove nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from harness.core.cell.axis_values import BUILT_IN_TRAINERS
from harness.core.cell.upstream_config import OF_STAGES, Difference, asked, differences, listed
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
    """Return why nothing of a cell can be compared, by what upstream built on its ranks, or ''."""
    records = evidence.records
    problem = _unrecorded(evidence) or _misplaced(records) or _different_ranks(records)
    if evidence.cell.config.model.builder:
        return problem or (_not_the_controls(evidence, evidence.control) if evidence.control else "")
    return problem or _not_asked(evidence)


def _unrecorded(evidence: CellEvidence) -> str:
    """Return what a rank that trained did not record; the image tower is on the first stage alone."""
    has_tower = evidence.cell.config.model.vision is not None
    for rank, record in sorted(evidence.records.items()):
        elsewhere = set() if has_tower and record.place.pp == 0 else {"tower"}
        absent = _PARTS.keys() - {built.of for built in record.built} - elsewhere
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
    """Return how chunks or ranks differ in the values that their parts of the model were built with, or ''."""
    first_built: dict[str, tuple[int, Mapping[str, str]]] = {}
    for rank, record in sorted(records.items()):
        for built in record.built:
            first, values = first_built.setdefault(built.of, (rank, built.values))
            if mismatches := differences(built.values, values):
                where = f"rank {first}" if rank != first else "another chunk of it"
                return f"the ranks have different {_PARTS[built.of]}s: rank {rank} {listed(mismatches, where)}"
    return ""


def _not_asked(evidence: CellEvidence) -> str:
    """Return the first part that upstream built with other values than the cell asks for or upstream has by default."""
    wanted = asked(evidence.cell.config)

    def mismatches(built: BuiltSeen) -> list[Difference]:
        if built.of == "constructor" and not built.values and evidence.cell.config.trainer not in BUILT_IN_TRAINERS:
            return []  # a plug-in may build its model before the harness keeps the arguments of models
        # A release that lacks a field cannot have it on.
        return [
            difference
            for difference in differences(built.values, wanted[built.of])
            if difference.one is not None or difference.other not in _OFF
        ]

    return _first(evidence, mismatches, "matrix's", "asked")


def _not_the_controls(evidence: CellEvidence, control: CellEvidence) -> str:
    known = {built.of: built.values for record in control.records.values() for built in record.built}

    def mismatches(built: BuiltSeen) -> list[Difference]:
        found = differences(built.values, known.get(built.of, built.values))
        return [difference for difference in found if difference.field not in OF_STAGES]

    return _first(evidence, mismatches, "control's", "control")


def _first(
    evidence: CellEvidence, mismatches_of: Callable[[BuiltSeen], list[Difference]], whose: str, other: str
) -> str:
    """Return the first part that is not as it should be, with the ranks that have it unless all do."""
    records = evidence.records
    for of, part in _PARTS.items():
        for built in (built for record in records.values() for built in record.built if built.of == of):
            if mismatches := mismatches_of(built):
                ranks = [rank for rank, record in sorted(records.items()) if built in record.built]
                on = "" if len(ranks) == len(records) else f" on {numbered('rank', ranks)}"
                return f"the {part} is not the {whose}{on}: {listed(mismatches, other)}"
    return ""
