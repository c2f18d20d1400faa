"""Records required of every leg on a completed rank: batches, layers, packed params, steps and canary legs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from harness.core.cell.canary_legs import Leg
from harness.core.packing.arithmetic import PAD
from harness.core.packing.fields import OFFSETS, PADDED, PADDING_MASK
from harness.core.run.records import (
    BatchSeen,
    DocumentLoss,
    LaterSeen,
    LegSeen,
    Progress,
    RankRecord,
    SeenParams,
    StepSeen,
    TensorSeen,
    TrainingSeen,
)
from harness.core.vision import AXES
from harness.judge.evidence.chunks import fields_used, is_last
from harness.judge.required import reports
from harness.judge.required.expected import BatchKey, Expected, Shapes

_INTEGERS, _FLOATS = ("torch.int64", "torch.int32"), ("torch.float32", "torch.float64")
_DTYPES: dict[str, tuple[str, ...]] = {
    "tokens": _INTEGERS,
    "labels": _INTEGERS,
    "position_ids": _INTEGERS,
    "loss_mask": _FLOATS,
    PADDING_MASK: ("torch.bool",),
}
_LOG_PROBS = (*_FLOATS, "torch.bfloat16")


def problems(expected: Expected, record: RankRecord) -> Iterator[str]:
    """Problems of one completed rank. The metadata lane has passed, so batches and packed params are the plan's."""
    at, steps = record.place, len(expected.evidence.steps)
    end = Progress(leg="end", step=expected.config.train.steps, micro_batch=0, phase="done")
    if record.progress != end:
        yield f"progress: the rank completed, but last was in {record.progress.leg} leg, step {record.progress.step}"
    if len(record.micro_batches) != steps:
        yield f"micro_batches: {len(record.micro_batches)} counts for {steps} steps"
    work = [(seen.leg, seen.step) for seen in record.workloads]
    if work != expected.workloads:
        yield f"workloads: recorded for {work}, expected for {expected.workloads}"
    yield from _keys("batches", (_key(batch) for batch in record.batches), expected.batch_keys(at.dp))
    yield from _batches(expected, record, record.batches, expected.shapes(at.dp), "batches")
    layers = ((s.step, s.chunk, s.micro_batch, s.layer) for s in record.layers)
    yield from _keys("layers", layers, expected.layer_keys(at.pp, at.dp))
    again = ((s.step, s.chunk, s.micro_batch, s.layer) for s in record.recomputed)
    yield from _keys("recomputed", again, expected.recomputed_keys(at.pp, at.dp))
    yield from _params(record)
    for seen in record.steps:
        yield from _step(expected, record, seen)
    yield from reports.problems(expected, record)
    yield from _evaluations(expected, record)
    for seen_leg, leg in zip(record.legs, expected.legs):
        yield from (f"legs: {leg.name}: {problem}" for problem in _leg(expected, record, seen_leg, leg))


def _key(batch: BatchSeen) -> BatchKey:
    return batch.step, batch.chunk, batch.micro_batch


def _keys(name: str, found: Iterable[tuple[int, ...]], right: Collection[tuple[int, ...]]) -> Iterator[str]:
    """Problems unless every planned key is there exactly once."""
    held, wanted = list(found), frozenset(right)
    if len(held) == len(wanted) == len(wanted.intersection(held)):
        return
    counts = Counter(held)
    for what, keys in (
        ("missing", wanted - counts.keys()),
        ("not planned", counts.keys() - wanted),
        ("listed twice", {key for key, count in counts.items() if count > 1}),
    ):
        if keys:
            yield f"{name}: {len(keys)} {what}, such as {min(keys)}; {len(wanted)} are planned"


def _batches(
    expected: Expected, record: RankRecord, batches: Sequence[BatchSeen], shapes: Shapes, name: str
) -> Iterator[str]:
    returned = expected.config.path.returns_log_probs
    for batch in batches:
        shape = shapes.get((batch.step, batch.micro_batch))
        if shape is None:
            continue  # `_keys` names it
        where = f"{name}: step {batch.step}, chunk {batch.chunk}, micro-batch {batch.micro_batch}"
        used = fields_used(expected.config, record.place.pp, batch.chunk)
        for field, dtypes in _DTYPES.items():
            seen: TensorSeen | None = getattr(batch, field)
            if seen is None:
                yield from (f"{where} has no {field}",) if field in used else ()
            elif not seen.mismatches:
                axes = (len(AXES),) if field == "position_ids" and expected.config.model.vision else ()
                yield from _tensor(f"{where}: {field}", seen, (*axes, *shape), dtypes)
        slots = [_slots(shape) * expected.layout.cp]
        if batch.log_probs is not None and not batch.log_probs.mismatches:
            yield from _tensor(f"{where}: log_probs", batch.log_probs, slots, _LOG_PROBS)
        if (batch.log_probs is not None) != (returned and is_last(expected.config, record.place.pp, batch.chunk)):
            yield f"{where}: log_probs are {'present' if batch.log_probs else 'missing'}"
        if (batch.params is not None) != expected.config.style.packed:
            yield f"{where} has {'no ' if batch.params is None else ''}packed params"


def _slots(shape: Sequence[int]) -> int:
    return shape[0] * shape[1]


def _tensor(where: str, seen: TensorSeen, shape: Sequence[int], dtypes: Sequence[str]) -> Iterator[str]:
    """A tensor with the right content must have the right shape and dtype too."""
    if seen.shape != list(shape):
        yield f"{where} has shape {seen.shape} and no mismatch; the plan has {list(shape)}"
    if seen.dtype not in dtypes:
        yield f"{where} is {seen.dtype}, not {' or '.join(dtypes)}"


def _params(record: RankRecord) -> Iterator[str]:
    """Packed params must be used and distinct, and state the form of every tensor."""
    batches = [*record.batches, *(batch for leg in record.legs for batch in leg.batches)]
    used = {batch.params for batch in batches} | {layer.params for layer in (*record.layers, *record.recomputed)}
    for number, params in enumerate(record.packed_params):
        if number not in used:
            yield f"packed_params: number {number} is not used"
        yield from (f"packed_params: number {number}: {problem}" for problem in _forms(params))
    if any(one == other for n, one in enumerate(record.packed_params) for other in record.packed_params[:n]):
        yield "packed_params: the same values are listed twice"


def _forms(params: SeenParams) -> Iterator[str]:
    present = [name for name in (*OFFSETS, *PADDED) if getattr(params, name) is not None]
    on_meta = [name for name, form in params.forms.items() if form.device == "meta"]
    if set(params.forms) != {*present, *on_meta}:
        yield f"forms are of {sorted(params.forms)}, offsets are {present}"
    for name, form in params.forms.items():
        first = form.same_as
        if first is not None and (first not in params.forms or getattr(params, first) != getattr(params, name)):
            yield f"{name} cannot be the same tensor as {first}, which has other values"
    if (params.max_seqlen_type is None) != (params.max_seqlen_q is None):
        yield f"max_seqlen_q is {params.max_seqlen_q} of type {params.max_seqlen_type}"


def _step(expected: Expected, record: RankRecord, seen: StepSeen) -> Iterator[str]:
    last, step = expected.is_last(record.place), seen.step
    for name in ("loss_sum", "token_count"):
        if (getattr(seen, name) is not None) != last:
            yield f"steps: step {step}: {name} is {getattr(seen, name)!r} on {'the last' if last else 'another'} stage"
    if seen.returned_tokens is not None and not last:
        yield f"steps: step {step}: returned_tokens is {seen.returned_tokens!r} on another stage than the last"
    if seen.grad_norm is None:
        yield f"steps: step {step}: grad_norm is missing"
    elif seen.grad_norm < 0:
        yield f"steps: step {step}: grad_norm is {seen.grad_norm!r}"
    if not (seen.rates and seen.decays):
        yield f"steps: step {step}: no learning rate or no decay of the optimizer's groups is there"
    if (seen.documents or seen.tokens) and not (last and record.place.tp == 0):
        yield f"steps: step {step}: it has losses of documents, which only tp rank 0 of the last stage records"
    if seen.tokens and step:
        yield f"steps: step {step}: it has losses of tokens, which only step 0 records"
    plan = expected.evidence.plan[step][record.place.dp]
    sizes = (sum(truth.batch.real_tokens for truth in plan), sum(truth.batch.slots for truth in plan))
    if (seen.real_tokens, seen.slots) != sizes:
        yield f"steps: step {step}: {seen.real_tokens} real tokens in {seen.slots} slots, the plan has {sizes}"
    yield from _document_names(f"steps: step {step}", seen.documents, expected.evidence.homes[step])


def _evaluations(expected: Expected, record: RankRecord) -> Iterator[str]:
    config, last = expected.config, expected.is_last(record.place)
    found, right = [seen.after for seen in record.evaluations], list(config.evaluations.values())
    if found != right:
        if config.own_trainer:  # upstream's trainer decides itself: the check `evaluation` reports it
            yield f"evaluations: after steps {found}, expected after {right}"
        return
    for number, seen in zip(config.evaluations, record.evaluations):
        where = f"evaluations: number {number}"
        for name in ("loss_sum", "token_count"):
            if (getattr(seen, name) is not None) != last:
                yield f"{where}: {name} is {getattr(seen, name)!r} on {'the last' if last else 'another'} stage"
        if seen.reported is not None and (config.own_trainer or not last):
            yield f"{where}: reported is {seen.reported!r}, and only the last stage of upstream's trainer reports it"
        if seen.documents and not (last and record.place.tp == 0):
            yield f"{where}: it has losses of documents, which only tp rank 0 of the last stage records"
        plan = config.micro_batches(config.train.steps + number)[record.place.dp]
        if seen.micro_batches != len(plan):
            yield f"{where}: {seen.micro_batches} micro-batches, the plan has {len(plan)}"
        known = (item.document.index for batch in plan for item in batch.placed)
        yield from _document_names(where, seen.documents, known)


def _document_names(where: str, documents: Iterable[int], known: Iterable[int]) -> Iterator[str]:
    foreign = set(documents) - set(known) - {PAD}
    if foreign:
        yield f"{where}: there is no document {min(foreign)}"


def _leg(expected: Expected, record: RankRecord, seen: LegSeen, leg: Leg) -> Iterator[str]:
    at = record.place
    if not leg.model:
        keys, shapes = expected.leg_batches(leg.name, at.dp)
        yield from _leg_batches(expected, record, seen, keys, shapes)
    elif seen.batches:
        yield "it runs the model but holds batches"
    losses = leg.model and expected.is_last(at)
    if not losses and (seen.loss_sum or seen.token_count):
        yield f"loss_sum {seen.loss_sum!r}, token_count {seen.token_count} where no loss is computed"
    if (seen.documents or seen.tokens) and not (losses and at.tp == 0):
        yield "it has losses of documents, which only tp rank 0 of the last stage records"
    if seen.tokens:
        yield "it has losses of tokens, which only step 0 records"
    if losses:
        yield from _document_names("losses", seen.documents, (document.index for document in leg.documents))
    if leg.trains and (first := record.steps[:1]) and _tokens(seen.documents) != _tokens(first[0].documents):
        yield "documents: not those of step 0"
    if (seen.training is not None) != leg.trains:
        yield f"its later steps are {'missing' if leg.trains else 'recorded, though it does not train'}"
    elif seen.training is not None:
        yield from _trained_again(record, seen.training)


def _trained_again(record: RankRecord, seen: TrainingSeen) -> Iterator[str]:
    """A second training has what the first one has, of every step after step 0."""
    for name, found, right in (
        ("steps", seen.steps, [_Later(one.step, one.documents, True) for one in record.steps[1:]]),
        ("evaluations", seen.evaluations, [_Later(one.after, one.documents, False) for one in record.evaluations]),
    ):
        if [_later(_Later(one.after, one.documents, one.grad_norm is not None)) for one in found] != [
            _later(one) for one in right
        ]:
            yield f"{name}: their numbers, documents or tokens are not those of the training leg"
    yield from (f"steps: step {one.after}: grad_norm is {one.grad_norm!r}" for one in seen.steps if _negative(one))
    names = [one.name for one in record.parameters]
    for kind, weights, wanted in (
        ("changes", seen.changes, names),
        ("trained", seen.trained, names),
        ("merged", seen.merged, [one.name for one in record.merged if one.after is not None]),
    ):
        if list(weights) != wanted:
            yield f"{kind}: not the weights of the training leg"
    places = [(one.step, one.layer, len(one.values)) for one in record.expert_biases]
    if [(one.step, one.layer, len(one.values)) for one in seen.expert_biases] != places:
        yield "expert_biases: not those of the training leg"


class _Later(NamedTuple):
    after: int
    documents: Mapping[int, DocumentLoss]
    has_norm: bool


def _later(one: _Later) -> tuple[int, dict[int, int], bool]:
    return one.after, _tokens(one.documents), one.has_norm


def _tokens(documents: Mapping[int, DocumentLoss]) -> dict[int, int]:
    return {document: loss.tokens for document, loss in documents.items()}


def _negative(seen: LaterSeen) -> bool:
    return seen.grad_norm is not None and seen.grad_norm < 0


def _leg_batches(
    expected: Expected, record: RankRecord, seen: LegSeen, keys: list[BatchKey], shapes: Shapes
) -> Iterator[str]:
    yield from _keys("batches", (_key(batch) for batch in seen.batches), keys)
    yield from _batches(expected, record, seen.batches, shapes, "leg batches")
