"""Tokens and positions are on the first stage, labels and loss mask on the last, and a mask of padding, where the path
gives one, on every stage; each with the plan's content.
"""

from __future__ import annotations

from dataclasses import dataclass

from harness.core.outcomes import Severity
from harness.core.packing.arithmetic import PAD
from harness.core.packing.fields import BATCH, PADDING_MASK
from harness.core.run.records import BatchSeen, TensorSeen
from harness.judge.checks.finding import CheckFinding
from harness.judge.diagnosis import boundaries, fault_classes
from harness.judge.diagnosis.boundaries import CHUNK_EDGE, Boundaries
from harness.judge.evidence.cell_evidence import CellEvidence
from harness.judge.evidence.chunks import fields_used
from harness.judge.evidence.endings import Ending
from harness.judge.locations import RankLocation, extent, fold, listed

_FIELDS = (*BATCH, PADDING_MASK)
_MOVED = ("tokens", "position_ids", "labels")  # a mask may look the same in other places
RETURNED = "log_probs"  # of data paths that return unpacked log-probabilities: `first` names slots, not documents


@dataclass(frozen=True, kw_only=True)
class _Wrong:
    place: RankLocation
    field: str
    seen: TensorSeen | None


def check(evidence: CellEvidence) -> list[CheckFinding]:
    missing: list[_Wrong] = []
    content: list[_Wrong] = []
    extra: list[_Wrong] = []
    for ending in evidence.endings:
        record = evidence.records.get(ending.rank)
        for batch in record.batches if record else ():
            _classify(evidence, ending, batch, missing, content, extra)
        missing += _absent(evidence, ending)
    findings = [
        _content(evidence, field, content)
        for field in (*_FIELDS, RETURNED)
        if any(item.field == field for item in content)
    ]
    if missing:
        findings.insert(0, _folded(missing, Severity.ERROR, "missing", "present"))
    if extra:
        findings.append(_folded(extra, Severity.WARNING, "given to a stage that does not use it", "absent"))
    return findings


def _classify(
    evidence: CellEvidence,
    ending: Ending,
    batch: BatchSeen,
    missing: list[_Wrong],
    content: list[_Wrong],
    extra: list[_Wrong],
) -> None:
    place = _place(ending, batch.step, batch.chunk, batch.micro_batch)
    stage, chunks = ending.place.pp, range(evidence.layout.vpp)
    config = evidence.cell.config
    needed = fields_used(config, stage, batch.chunk)
    # By rank, not by chunk: a data path reads once per rank, so a field that a chunk does not use costs nothing extra.
    useful = {field for chunk in chunks for field in fields_used(config, stage, chunk)}
    for field in _FIELDS:
        seen: TensorSeen | None = getattr(batch, field)
        if seen is None:
            missing += [_Wrong(place=place, field=field, seen=None)] if field in needed else []
        elif seen.mismatches:
            content.append(_Wrong(place=place, field=field, seen=seen))
        elif field not in useful and field != PADDING_MASK:  # of the harness's own paths, where routers ask for it
            extra.append(_Wrong(place=place, field=field, seen=seen))
    if batch.log_probs is not None and batch.log_probs.mismatches:
        content.append(_Wrong(place=place, field=RETURNED, seen=batch.log_probs))


def _place(ending: Ending, step: int, chunk: int, micro_batch: int) -> RankLocation:
    return RankLocation(ending.rank, ending.place, "metadata", step, micro_batch, chunk)


def _absent(evidence: CellEvidence, ending: Ending) -> list[_Wrong]:
    """Fields of unpacked batches that a completed rank never recorded; `params_present` covers packed ones."""
    record = evidence.records.get(ending.rank)
    if record is None or evidence.packed or ending.ended != "completed":
        return []
    seen = {(batch.step, batch.chunk, batch.micro_batch) for batch in record.batches}
    return [
        _Wrong(place=_place(ending, step, chunk, micro_batch), field=field, seen=None)
        for step in evidence.fetched_steps
        for micro_batch in range(len(evidence.plan[step][ending.place.dp]))
        for chunk in range(evidence.layout.vpp)
        if (step, chunk, micro_batch) not in seen
        for field in fields_used(evidence.cell.config, ending.place.pp, chunk)
    ]


def _folded(wrong: list[_Wrong], severity: Severity, problem: str, bound: str) -> CheckFinding:
    first, where = fold([item.place for item in wrong])
    fields = [field for field in _FIELDS if any(item.field == field for item in wrong)]
    return CheckFinding(
        severity=severity,
        fault_class=fault_classes.TOKEN_CONTENT,
        message=f"{listed(fields)} {problem} at {first}{extent(where)}",
        where={**where, "field": fields[0]},
        measured=problem,
        bound=bound,
    )


def _content(evidence: CellEvidence, field: str, content: list[_Wrong]) -> CheckFinding:
    wrong = [item for item in content if item.field == field]
    first, where = fold([item.place for item in wrong])
    seen = next(item.seen for item in wrong if item.place == first)
    assert seen is not None  # content holds only batches that have the field
    named = seen.first
    where["field"] = field
    if named:
        where |= {"padding_slot": named[1]} if named[0] == PAD else {"document": named[0], "token": named[1]}
    edges = boundaries.NOTHING
    if named and field != RETURNED:  # `named` holds slots for log-probabilities
        batch = evidence.plan[first.step][first.at.dp][first.micro_batch].batch
        edges = boundaries.of_token(batch, evidence.layout, named[0], named[1])
    if named:
        slot = "padding slot" if named[0] == PAD else f"document {named[0]}, token"
        detail = f": {slot} {named[1]} is {named[3]}, expected {named[2]}"
    else:
        detail = f": its shape is {seen.shape}"
    return CheckFinding(
        fault_class=_fault_class(evidence, first.step, named, _is_split_wrong(evidence, field, edges, content)),
        message=f"{seen.mismatches} slots of {field} differ from the plan at {first}{detail}{edges.text}"
        f"{extent(where)}",
        where=edges.keys | where,  # the rank that saw it overrides the one that should hold it
        measured=named[3] if named else seen.mismatches,
        bound=named[2] if named else 0,
    )


def _fault_class(evidence: CellEvidence, step: int, named: list[int] | None, is_split_wrong: bool) -> str:
    home = evidence.homes[step].get(named[0]) if named else None
    if home is not None and home.truncated:
        return fault_classes.TRUNCATION
    return fault_classes.CP_LAYOUT if is_split_wrong else fault_classes.TOKEN_CONTENT


def _is_split_wrong(evidence: CellEvidence, field: str, edges: Boundaries, content: list[_Wrong]) -> bool:
    """Whether the split over context ranks is: it moves every field, and labels rolled after it differ at its edges."""
    batches = [batch for record in evidence.records.values() for batch in record.batches]
    given = {name for name in _MOVED if any(getattr(batch, name) is not None for batch in batches)}
    rolled = field == "labels" and CHUNK_EDGE in edges.boundaries
    return evidence.layout.cp > 1 and (rolled or given <= {item.field for item in content})
