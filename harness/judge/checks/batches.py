"""Batches: tokens are where the packing plan has them, in as many micro-batches, and their work is counted."""

from __future__ import annotations

from dataclasses import dataclass

from harness.core.outcomes import Domain, Lane, Severity
from harness.core.packing.arithmetic import PAD, WORKLOAD_ROUNDING, Workload, workloads
from harness.core.packing.fields import BATCH, PADDING_MASK
from harness.core.run.records import BatchSeen, RankRecord, TensorSeen, WorkloadSeen
from harness.judge.checks.finding import CheckFinding, check
from harness.judge.diagnosis import fault_classes, localise
from harness.judge.diagnosis.localise import CHUNK_EDGE, Boundaries
from harness.judge.diagnosis.ratios import factors_of, ratio_name
from harness.judge.evidence.cell_evidence import CellEvidence
from harness.judge.evidence.endings import TRAINED, Ending
from harness.judge.evidence.truth import fields_used
from harness.judge.failures.classification import Cause
from harness.judge.failures.patterns import ABSENT_NAME, CONFIGURATION
from harness.judge.locations import RankLocation, extent, fold, listed, numbered, where_of

_FIELDS = (*BATCH, PADDING_MASK)
_MOVED = ("tokens", "position_ids", "labels")  # a mask may look the same in other places
_INTEGERS, _FLOATS = ("torch.int64", "torch.int32"), ("torch.float32", "torch.float64")
# In another one a sum over slots is wrong: a float16 mask counts 2048 tokens at most, the complement of an integer is
# no mask.
_DTYPES = dict.fromkeys((*BATCH, PADDING_MASK), _INTEGERS) | {"loss_mask": _FLOATS, PADDING_MASK: ("torch.bool",)}
RETURNED = "log_probs"  # of data paths that return unpacked log-probabilities: `first` names slots, not documents


@dataclass(frozen=True, kw_only=True)
class _Wrong:
    place: RankLocation
    field: str
    seen: TensorSeen | None


@check(Lane.METADATA)
def tokens_placed(evidence: CellEvidence) -> list[CheckFinding]:
    """Check that every field of a batch has the plan's content, on the stages that use it.

    Tokens and positions belong to the first stage, labels and loss mask to the last, and a mask of padding, where the
    path gives one, to every stage.
    """
    missing: list[_Wrong] = []
    content: list[_Wrong] = []
    extra: list[_Wrong] = []
    dtypes: list[_Wrong] = []
    for ending in evidence.endings:
        record = evidence.records.get(ending.rank)
        for batch in record.batches if record else ():
            _classify(evidence, ending, batch, missing, content, extra, dtypes)
        missing += _absent(evidence, ending)
    findings = [
        _content(evidence, field, content)
        for field in (*_FIELDS, RETURNED)
        if any(mismatch.field == field for mismatch in content)
    ]
    if missing:
        findings.insert(0, _folded(missing, Severity.ERROR, "missing", "present"))
    findings += [_dtype(field, dtypes) for field in _FIELDS if any(mismatch.field == field for mismatch in dtypes)]
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
    dtypes: list[_Wrong],
) -> None:
    place = _place(ending, batch.step, batch.chunk, batch.micro_batch)
    stage, chunks = ending.place.pp, range(evidence.layout.vpp)
    config = evidence.cell.config
    needed = fields_used(config, stage, batch.chunk)
    # By rank, not by chunk: a data path reads once per rank, so a field that a chunk does not use costs nothing extra.
    useful = {field for chunk in chunks for field in fields_used(config, stage, chunk)}
    for field in _FIELDS:
        tensor: TensorSeen | None = getattr(batch, field)
        if tensor is None:
            missing += [_Wrong(place=place, field=field, seen=None)] if field in needed else []
        elif tensor.mismatches:
            content.append(_Wrong(place=place, field=field, seen=tensor))
        elif tensor.dtype not in _DTYPES[field]:
            dtypes.append(_Wrong(place=place, field=field, seen=tensor))
        # A mask of padding: of the harness's own paths, where routers ask for it. What a path does not give the model
        # may be recorded all the same: `Batch.beside`.
        elif field not in useful and field not in (PADDING_MASK, *config.path.without):
            extra.append(_Wrong(place=place, field=field, seen=tensor))
    if batch.log_probs is not None and batch.log_probs.mismatches:
        content.append(_Wrong(place=place, field=RETURNED, seen=batch.log_probs))


def _place(ending: Ending, step: int, chunk: int, micro_batch: int) -> RankLocation:
    return RankLocation(ending.rank, ending.place, "metadata", step, micro_batch, chunk)


def _absent(evidence: CellEvidence, ending: Ending) -> list[_Wrong]:
    """Return fields of unpacked batches that a completed rank never recorded; `params_present` covers packed ones."""
    record = evidence.records.get(ending.rank)
    if record is None or evidence.packed or ending.ended != "completed":
        return []
    recorded = {(batch.step, batch.chunk, batch.micro_batch) for batch in record.batches}
    return [
        _Wrong(place=_place(ending, step, chunk, micro_batch), field=field, seen=None)
        for step in evidence.fetched_steps
        for micro_batch in range(len(evidence.plan[step][ending.place.dp]))
        for chunk in range(evidence.layout.vpp)
        if (step, chunk, micro_batch) not in recorded
        for field in fields_used(evidence.cell.config, ending.place.pp, chunk)
    ]


def _folded(wrong: list[_Wrong], severity: Severity, problem: str, bound: str) -> CheckFinding:
    first, where = fold([mismatch.place for mismatch in wrong])
    fields = [field for field in _FIELDS if any(mismatch.field == field for mismatch in wrong)]
    return CheckFinding(
        severity=severity,
        fault_class=fault_classes.TOKEN_CONTENT,
        message=f"{listed(fields)} {problem} at {first}{extent(where)}",
        where={**where, "field": fields[0]},
        measured=problem,
        bound=bound,
    )


def _content(evidence: CellEvidence, field: str, content: list[_Wrong]) -> CheckFinding:
    wrong = [mismatch for mismatch in content if mismatch.field == field]
    first, where = fold([mismatch.place for mismatch in wrong])
    tensor = next(mismatch.seen for mismatch in wrong if mismatch.place == first)
    assert tensor is not None  # content holds only batches that have the field
    named = tensor.first
    where["field"] = field
    if named:
        where |= {"padding_slot": named[1]} if named[0] == PAD else {"document": named[0], "token": named[1]}
    edges = localise.NOTHING
    if named and field != RETURNED:  # `named` holds slots for log-probabilities
        batch = evidence.plan[first.step][first.at.dp][first.micro_batch].batch
        edges = localise.of_token(batch, evidence.layout, named[0], named[1])
    if named:
        slot = "padding slot" if named[0] == PAD else f"document {named[0]}, token"
        detail = f": {slot} {named[1]} is {named[3]}, expected {named[2]}"
    else:
        detail = f": its shape is {tensor.shape}"
    return CheckFinding(
        fault_class=_class_of_mismatches(evidence, first.step, named, _is_split_wrong(evidence, field, edges, content)),
        message=f"{tensor.mismatches} slots of {field} differ from the plan at {first}{detail}{edges.text}"
        f"{extent(where)}",
        where=edges.keys | where,  # the rank that saw it overrides the one that should hold it
        measured=named[3] if named else tensor.mismatches,
        bound=named[2] if named else 0,
    )


def _dtype(field: str, dtypes: list[_Wrong]) -> CheckFinding:
    wrong = [mismatch for mismatch in dtypes if mismatch.field == field]
    first, where = fold([mismatch.place for mismatch in wrong])
    dtype, allowed = next(mismatch.seen.dtype for mismatch in wrong if mismatch.seen), " or ".join(_DTYPES[field])
    return CheckFinding(
        fault_class=fault_classes.TOKEN_CONTENT,
        message=f"{field} is {dtype}, not {allowed}, at {first}{extent(where)}",
        where={**where, "field": field},
        measured=dtype,
        bound=allowed,
    )


def _class_of_mismatches(evidence: CellEvidence, step: int, named: list[int] | None, is_split_wrong: bool) -> str:
    home = evidence.document_positions[step].get(named[0]) if named else None
    if home is not None and home.truncated:
        return fault_classes.TRUNCATION
    return fault_classes.CP_LAYOUT if is_split_wrong else fault_classes.TOKEN_CONTENT


def _is_split_wrong(evidence: CellEvidence, field: str, edges: Boundaries, content: list[_Wrong]) -> bool:
    """Return whether the split over context ranks is wrong.

    It moves every field, and labels rolled after it differ at its edges.
    """
    batches = [batch for record in evidence.records.values() for batch in record.batches]
    given = {name for name in _MOVED if any(getattr(batch, name) is not None for batch in batches)}
    # Labels that were shifted after the split take the last token of each chunk from the wrong neighbour.
    rolled = field == "labels" and CHUNK_EDGE in edges.boundaries
    return evidence.layout.cp > 1 and (rolled or given <= {mismatch.field for mismatch in content})


@check(Lane.METADATA)
def micro_batch_count(evidence: CellEvidence) -> list[CheckFinding]:
    """Check that every rank runs the planned number of micro-batches per step; else collectives mispair or hang."""
    wrong = []
    for rank in sorted(evidence.records):
        record = evidence.records[rank]
        for step, count in _counts(evidence, record):
            # A step that the plan does not have must have no micro-batches, rather than no plan to compare with.
            expected = len(evidence.plan[step][record.place.dp]) if step in evidence.steps else 0
            if count != expected:
                wrong.append((step, rank, record, count, expected))
    if not wrong:
        return []
    step, rank, record, count, expected = min(wrong, key=lambda entry: entry[:2])
    ranks = sorted({rank for _, rank, *_ in wrong})
    return [
        CheckFinding(
            fault_class=fault_classes.MICRO_BATCHES,
            message=f"rank {rank} ({record.place}) has {count} micro-batches in step {step}, the plan has {expected}; "
            f"wrong on {numbered('rank', ranks)}{_replicas(evidence, step)}",
            where=where_of(record.place, rank=rank, step=step) | {"ranks": ranks},
            measured=count,
            bound=expected,
        )
    ]


def _replicas(evidence: CellEvidence, step: int) -> str:
    """Return the count of each replica if they differ, or ''.

    Gradients are summed over replicas, so all must run the same number.
    """
    counts: dict[int, set[int]] = {}
    for record in evidence.records.values():
        for number, count in _counts(evidence, record):
            if number == step:
                counts.setdefault(record.place.dp, set()).add(count)
    if len({frozenset(replica) for replica in counts.values()}) < 2:
        return ""
    texts = [f"replica {dp}: {' or '.join(map(str, sorted(counts[dp])))}" for dp in sorted(counts)]
    return f"; data-parallel replicas differ: {', '.join(texts)}"


def _counts(evidence: CellEvidence, record: RankRecord) -> list[tuple[int, int]]:
    """Return (step, count) pairs: those the data path planned, then those the training leg ran."""
    planned = enumerate(record.micro_batches, evidence.steps.start)
    return [*planned, *((step.step, step.micro_batches) for step in record.steps)]


NAMES = {
    "micro_batches": "the number of micro-batches",
    "tokens": "the sum of lengths",
    "squares": "the sum of squared lengths",
}


@check(Lane.METADATA)
def workload(evidence: CellEvidence) -> list[CheckFinding]:
    """Check the workload that the data path counted: micro-batches, sum of lengths, sum of squared lengths.

    The schedule runs that number of micro-batches, and FLOPs are computed from the sums, which must not depend on the
    number of model chunks. Counts are compared exactly, but sums that float32 cannot hold up to its rounding. Data
    paths that do not count their work are not compared.
    """
    if not any(record.workloads for record in evidence.records.values()):
        return []
    steps = [[[truth.batch for truth in replica] for replica in step] for step in evidence.plan]
    truths = [workloads(step) for step in steps]
    return [finding for field in NAMES for finding in _of_field(evidence, field, truths)]


def _of_field(evidence: CellEvidence, field: str, truths: list[list[Workload]]) -> list[CheckFinding]:
    wrong: list[tuple[RankRecord, WorkloadSeen, float, float]] = []
    for rank in sorted(evidence.records):
        record = evidence.records[rank]
        for recorded in record.workloads:
            count, expected = getattr(recorded, field), getattr(truths[recorded.step][record.place.dp], field)
            if not _equal(count, expected):
                wrong.append((record, recorded, count, expected))
    if not wrong:
        return []
    record, recorded, count, expected = wrong[0]
    ranks = sorted({record.rank for record, *_ in wrong})
    return [
        CheckFinding(
            fault_class=fault_classes.WORKLOAD,
            message=f"{NAMES[field]} of step {recorded.step} is {count:g} on rank {record.rank} ({record.place}), "
            f"expected {expected:g}{_note(evidence, recorded.step, field, count, expected)}; "
            f"wrong on {numbered('rank', ranks)}",
            where=where_of(record.place, rank=record.rank, leg=recorded.leg, step=recorded.step)
            | {"field": field, "ranks": ranks},
            measured=count,
            bound=expected,
        )
    ]


def _note(evidence: CellEvidence, step: int, field: str, count: float, expected: float) -> str:
    """Return a known quantity that equals the wrong number, or ''."""
    rows = [truth.batch.slots for replica in evidence.plan[step] for truth in replica]
    whole = {"tokens": sum(rows), "squares": sum(slots**2 for slots in rows)}.get(field)
    # The usual mistake: lengths of rows taken for those of documents.
    if evidence.packed and whole is not None and _equal(count, whole):
        return ", as if every pack were one document"
    name = ratio_name(count / expected, factors_of(evidence, step), WORKLOAD_ROUNDING) if expected else None
    return f" ({name})" if name else ""


def _equal(count: float, expected: float) -> bool:
    return abs(count - expected) <= WORKLOAD_ROUNDING * expected


@check(Lane.METADATA)
def completeness(evidence: CellEvidence) -> list[CheckFinding]:
    """Check that every rank left a record and finished the metadata leg.

    A data path that raises or hangs while it only returns batches is itself wrong, so that is a metadata finding;
    `ended` covers the legs that run the model. Causes that do not blame the code are warnings: verdict.py makes them
    ERROR, not FAIL.
    """
    cause = evidence.cause
    if cause is None:
        return []
    ending = cause.ending
    if cause.blames_code and ending.progress.leg in TRAINED:
        return []
    return [
        CheckFinding(
            severity=Severity.ERROR if cause.blames_code else Severity.WARNING,
            fault_class=_class_of_failure(cause),
            message=f"{cause.message}{cause.others_text}",
            where=cause.where,
            measured=ending.ended,
            bound="completed",
        )
    ]


def _class_of_failure(cause: Cause) -> str:
    if cause.blames_code:
        return fault_classes.HANG if cause.ending.ended == "deadline" else fault_classes.CRASH
    if cause.domain == Domain.HARNESS:
        return fault_classes.HARNESS
    if cause.failure_class.name == CONFIGURATION.name:
        return fault_classes.CONFIGURATION
    if cause.failure_class.name == ABSENT_NAME.name:
        return fault_classes.ABSENT_NAME
    # A rank that was killed or left nothing gives the code no chance to be wrong.
    outside = cause.domain == Domain.INFRASTRUCTURE or cause.ending.ended in ("killed", "missing")
    return fault_classes.INFRASTRUCTURE if outside else fault_classes.UNKNOWN
