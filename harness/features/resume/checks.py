"""Checks of cells that continue from a checkpoint."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from harness.core.outcomes import Lane
from harness.core.run.records import RankRecord
from harness.core.run.tensor_records import STORED, StateSeen, StoredParameter
from harness.core.tolerances import Bound
from harness.judge.checks.finding import CheckFinding, check
from harness.judge.diagnosis import fault_classes
from harness.judge.evidence.assemble import held_copies, state_after, whole_state
from harness.judge.evidence.cell_evidence import CellEvidence
from harness.judge.locations import numbered, where_of
from harness.judge.stats.distance import beyond, bound_text, exactly, fingerprint_distance, stated

_RESHARDED = Bound(value=1e-9, origin="a checkpoint holds the same numbers; float64 sums over other shards")
_BITS = exactly("equal", "the same code on the same numbers in the same layout")
_COPIES = exactly("equal", "copies of one tensor")


@check(Lane.NUMERICS)
def resumed(evidence: CellEvidence) -> list[CheckFinding]:
    """Check that a cell continues from its checkpoint as if never interrupted: the first finding of each kind."""
    kinds: list[Iterator[CheckFinding]] = [_counters(evidence), _copies(evidence)]
    if evidence.saved is not None:
        same = evidence.saved.layout == evidence.layout
        of_same = [
            _state(evidence, evidence.saved),
            _random(evidence, evidence.saved),
            _resumed_steps(evidence, evidence.saved),
            _evaluations(evidence, evidence.saved),
        ]
        kinds += of_same if same else [_resharded(evidence, evidence.saved)]
    return [finding for kind in kinds if (finding := next(kind, None)) is not None]


def _counters(evidence: CellEvidence) -> Iterator[CheckFinding]:
    """Compare the optimizer's count with the steps before, and the count of the learning rate's schedule with rows."""
    rows = [len(evidence.cell.config.samples(step)) for step in range(len(evidence.plan))]
    for record in evidence.records.values():
        for state in record.states:
            if state.parameters and state.updates != state.after:  # a stage without weights counts none
                yield _resumed_finding(
                    f"the optimizer has counted {state.updates} updates after step {state.after} on rank {record.rank}",
                    record,
                    state.after,
                    measured=state.updates,
                    bound=exactly(state.after, "every step updates"),
                )
            expected_rows = sum(rows[: state.after])
            if state.scheduled != expected_rows:
                yield _resumed_finding(
                    f"the schedule of the learning rate has counted {state.scheduled} rows after step {state.after} on "
                    f"rank {record.rank}, expected {expected_rows} by the packing plan",
                    record,
                    state.after,
                    measured=state.scheduled,
                    bound=exactly(expected_rows, "the packing plan"),
                )


def _copies(evidence: CellEvidence) -> Iterator[CheckFinding]:
    for after in evidence.cell.config.stored:
        for record, parameter, first_rank, copy in held_copies(evidence.records, after):
            if part := _differing_part(parameter, copy):
                yield _resumed_finding(
                    f"{part} of {parameter.name} after step {after} on rank {record.rank} differs from its copy on "
                    f"rank {first_rank}",
                    record,
                    after,
                    bound=_COPIES,
                    parameter=parameter.name,
                )


def _state(evidence: CellEvidence, saved: CellEvidence) -> Iterator[CheckFinding]:
    """Compare states bit for bit, rank by rank; where only bits differ that no sum shows, all three may be wrong."""
    for after in evidence.cell.config.stored:
        for record, state, saved_state in _pairs(evidence, saved, after):
            held = {parameter.name: parameter for parameter in saved_state.parameters}
            wrong = [
                parameter
                for parameter in state.parameters
                if parameter.name in held and parameter != held[parameter.name]
            ]
            if wrong:
                first = wrong[0]
                part = _differing_part(first, held[first.name]) or "weight or a moment"
                names = numbered("parameter", [parameter.name for parameter in wrong])
                yield _resumed_finding(
                    f"{part} of {first.name} on rank {record.rank} {_when(evidence, after)}; different: {names}",
                    record,
                    after,
                    bound=_BITS,
                    parameter=first.name,
                )


def _random(evidence: CellEvidence, saved: CellEvidence) -> Iterator[CheckFinding]:
    for record, state, saved_state in _pairs(evidence, saved, evidence.cell.config.start_step):
        if state.random != saved_state.random:
            yield _resumed_finding(
                f"the state of the random generators of rank {record.rank} {_when(evidence, state.after)}",
                record,
                state.after,
                bound=_BITS,
            )


def _when(evidence: CellEvidence, after: int) -> str:
    if after == evidence.cell.config.start_step:
        return f"differs from what was saved after step {after}"
    return f"after step {after} differs from that of the run that was not interrupted"


def _resharded(evidence: CellEvidence, saved: CellEvidence) -> Iterator[CheckFinding]:
    """Compare whole tensors, put together from the shards of both layouts."""
    after = evidence.cell.config.start_step
    whole, saved_whole = (whole_state(part.records, after) for part in (evidence, saved))
    for name in saved_whole:
        if name not in whole:
            continue  # incomplete evidence
        for part, text in STORED.items():
            off = fingerprint_distance(getattr(whole[name], part), getattr(saved_whole[name], part))
            if beyond(off, _RESHARDED):
                record = next(holder for holder in evidence.records.values() if _holds(holder, after, name))
                beyond_bound = f"off by {off:.3g} > {bound_text(_RESHARDED)}"
                yield _resumed_finding(
                    f"{text} of {name} as a whole {_when(evidence, after)}: {beyond_bound}",
                    record,
                    after,
                    measured=off,
                    bound=stated(_RESHARDED),
                    parameter=name,
                )


def _resumed_steps(evidence: CellEvidence, saved: CellEvidence) -> Iterator[CheckFinding]:
    for step in evidence.steps:
        before = {record.rank: recorded for record, recorded in saved.step_records(step)}
        for record, recorded in evidence.step_records(step):
            for name, text in _OF_STEP.items():
                value, uninterrupted = getattr(recorded, name), getattr(before[record.rank], name)
                if value != uninterrupted:
                    yield _resumed_finding(
                        f"{text} of step {step} on rank {record.rank} differs from that of the run that was not "
                        f"interrupted: {_difference(value, uninterrupted)}",
                        record,
                        step,
                        bound=_BITS,
                    )


def _evaluations(evidence: CellEvidence, saved: CellEvidence) -> Iterator[CheckFinding]:
    """Compare evaluations: those of the resumed part are the last of the part that went on to the end."""
    for record, saved_record in _records(evidence, saved):
        later = saved_record.evaluations[-len(record.evaluations) :] if record.evaluations else []
        for evaluation, uninterrupted in zip(record.evaluations, later):
            for name, text in _OF_EVALUATION.items():
                value, expected = getattr(evaluation, name), getattr(uninterrupted, name)
                if value != expected:
                    yield _resumed_finding(
                        f"{text} of the evaluation after step {evaluation.after} on rank {record.rank} differs from "
                        f"that of the run that was not interrupted: {_difference(value, expected)}",
                        record,
                        evaluation.after,
                        bound=_BITS,
                    )


_OF_EVALUATION = {"loss_sum": "the loss sum", "documents": "the loss of documents", "reported": "the reported loss"}
_OF_STEP = {"loss_sum": "the loss sum", "grad_norm": "the gradient norm", "documents": "the loss of documents"}


def _difference(value: Any, uninterrupted: Any) -> str:
    """Return the difference of two numbers, or of the losses by document."""
    if not isinstance(value, dict):
        return f"{value!r}, not {uninterrupted!r}"
    return f"first of document {min(key for key in value | uninterrupted if value.get(key) != uninterrupted.get(key))}"


def _pairs(
    evidence: CellEvidence, saved: CellEvidence, after: int
) -> Iterator[tuple[RankRecord, StateSeen, StateSeen]]:
    """Yield (record, its state, the state of the same rank in the part that saved) where both exist."""
    for record, saved_record in _records(evidence, saved):
        state, saved_state = state_after(record, after), state_after(saved_record, after)
        if state is not None and saved_state is not None:
            yield record, state, saved_state


def _records(evidence: CellEvidence, saved: CellEvidence) -> Iterator[tuple[RankRecord, RankRecord]]:
    """Yield (record, that of the same rank in the part that saved) where both exist."""
    return ((record, saved.records[rank]) for rank, record in evidence.records.items() if rank in saved.records)


def _differing_part(parameter: StoredParameter, copy: StoredParameter) -> str | None:
    """Return the first part whose numbers differ; None if none do."""
    return next((text for part, text in STORED.items() if getattr(parameter, part) != getattr(copy, part)), None)


def _holds(record: RankRecord, after: int, name: str) -> bool:
    state = state_after(record, after)
    return state is not None and any(parameter.name == name for parameter in state.parameters)


def _resumed_finding(
    message: str, record: RankRecord, step: int, *, measured: Any = None, bound: Any, **more: Any
) -> CheckFinding:
    return CheckFinding(
        fault_class=fault_classes.RESUME,
        message=message,
        where=where_of(record.place, rank=record.rank, step=step, **more),
        measured=measured,
        bound=bound,
    )
