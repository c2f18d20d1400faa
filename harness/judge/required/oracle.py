"""The record of the oracle: it is there, of this cell and the model that its ranks built, whole and finite.

Every comparison of numbers reads it, so what it lacks would be compared with nothing.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from harness.core.cell.layout import Coordinates
from harness.core.run.record_file import digest_of_choices
from harness.core.run.record_limits import MOST_TOKEN_LOSSES, PROJECTIONS
from harness.core.run.records import SCHEMA_VERSION, LaterSeen, LegSeen, OracleRecord, RankRecord, StepSeen
from harness.core.run.tensor_records import Fingerprint, ParameterSeen
from harness.judge.evidence.cell_evidence import CellEvidence
from harness.judge.evidence.truth import Truth
from harness.judge.required.numbers import scan

_ONE_RANK = Coordinates(tp=0, cp=0, dp=0, pp=0)
_NONE = Fingerprint(norm_sq=0.0, projections=[])
_EXACT = 1e-9  # relative, of sums in float64
# Of a rank's record, what the oracle fills in.
FIELDS = ("steps", "evaluations", "parameters", "activations", "routers", "expert_biases", "mtp", "followed", "legs")


def problems(evidence: CellEvidence) -> Iterator[str]:
    """Of the oracle of a cell whose ranks all completed."""
    trained = any(record.steps for record in evidence.records.values())
    oracle = evidence.oracle
    if oracle is None:
        if trained:
            yield "it is missing, so there is nothing to compare the cell with"
        return
    if not trained:
        yield "no rank trained"
    if oracle.schema_version != SCHEMA_VERSION:
        yield f"schema_version {oracle.schema_version}, this harness reads {SCHEMA_VERSION}"
    if oracle.cell != evidence.cell.id:
        yield f"it belongs to cell {oracle.cell}"
    first = evidence.records.get(0)
    if first is not None and oracle.built != first.built:
        yield "its model is not the one that upstream built on rank 0"
    yield from _computed(evidence, oracle)


def _computed(evidence: CellEvidence, oracle: OracleRecord) -> Iterator[str]:
    held = [bool(oracle.record), bool(oracle.not_modelled), bool(oracle.failed)]
    if sum(held) != 1:
        yield "it must hold numbers, or one reason why it has none"
    if oracle.failed:
        yield f"the oracle failed, which is a defect of the harness: {oracle.failed.strip().splitlines()[-1]}"
    if oracle.record is not None:
        yield from _whole(evidence, oracle.record)
        parts = [part.records for part in (evidence.saved, evidence) if part is not None]
        if oracle.choices != digest_of_choices([records[rank] for records in parts for rank in sorted(records)]):
            yield "it followed other choices of routers than the ranks recorded"


def _whole(evidence: CellEvidence, record: RankRecord) -> Iterator[str]:
    """What the record lacks, or has wrong."""
    config = evidence.cell.config
    rest = RankRecord(cell=evidence.cell.id, rank=0, place=_ONE_RANK, ended="completed")
    without: dict[str, Any] = {name: [] for name in FIELDS}
    if replace(record, **without) != rest:
        yield "it holds more than the oracle computes, or is of another rank"
    steps = [seen.step for seen in record.steps]
    if steps != list(range(config.train.steps)):
        yield f"it has steps {steps} of {config.train.steps}"
        return
    for seen, step in zip(record.steps, evidence.plan):
        yield from (f"step {seen.step}: {problem}" for problem in _step(seen, step))
    documents = set(evidence.homes[0])
    layers = {seen.layer: seen.documents.keys() for seen in record.activations}
    if any(layers.get(layer) != documents for layer in range(config.model.layers + 1)):
        yield "it lacks the output of a layer for a document"
    if not record.parameters:
        yield "it has no parameters"
    yield from (f"{seen.name}: {problem}" for seen in record.parameters for problem in _parameter(seen))
    if [seen.after for seen in record.evaluations] != list(config.evaluated):
        yield f"it has {len(record.evaluations)} of {len(config.evaluated)} evaluations"
    for evaluation in record.evaluations:
        held = {one.layer: one.documents.keys() for one in evaluation.activations}
        if any(held.get(layer) != evaluation.documents.keys() for layer in range(config.model.layers + 1)):
            yield f"it lacks the output of a layer in the evaluation after step {evaluation.after}"
    yield from _followed(evidence, record)
    yield from _second_training(record)
    late = ("step", "after")
    bad = [one for one in scan(record).bad if max(one.where.get(name, 0) for name in late) < evidence.diverges]
    yield from (f"{item.what} is {item.value} {item.why}" for item in bad[:1])


def _followed(evidence: CellEvidence, record: RankRecord) -> Iterator[str]:
    """It follows every choice that the ranks recorded, and what experts drop."""
    seen = [choice for rank in evidence.records.values() for choice in rank.choices]
    right = {(one.step, one.layer, dropped) for one in seen for dropped in {False, one.taken is not None}}
    if sorted((one.step, one.layer, one.dropped) for one in record.followed) != sorted(right):
        yield f"it follows {len(record.followed)} choices of steps and layers, the ranks recorded {len(right)}"


def _step(seen: StepSeen, step: list[list[Truth]]) -> Iterator[str]:
    batches = [truth.batch for replica in step for truth in replica]
    placed = [item.document for batch in batches for item in batch.placed]
    if {document: loss.tokens for document, loss in seen.documents.items()} != {
        document.index: document.loss_tokens for document in placed
    }:
        yield "its documents are not those of the packing plan"
    losses = math.fsum(loss.loss_sum for loss in seen.documents.values())
    if seen.grad_norm is None or seen.loss_sum is None or not _equal(seen.loss_sum, losses):
        yield f"the loss is {seen.loss_sum}, the documents add up to {losses:.9g}; the gradient norm {seen.grad_norm}"
    bare = StepSeen(step=seen.step, micro_batches=len(batches), token_count=sum(one.loss_tokens for one in batches))
    if not (seen.rates and seen.decays):
        yield "it has no learning rate, or no decay"
    if replace(seen, loss_sum=None, grad_norm=None, rates=[], decays=[], documents={}, tokens=[]) != bare:
        yield "it counts other micro-batches or tokens, or holds what only ranks record"
    if bool(seen.tokens) != (seen.step == 0):
        yield f"it has {len(seen.tokens)} losses of tokens"
    by_document: dict[int, list[float]] = {}
    for token in seen.tokens:
        by_document.setdefault(token.document, []).append(token.loss)
    if len(seen.tokens) < MOST_TOKEN_LOSSES and seen.tokens:
        for document, loss in seen.documents.items():
            found = by_document.get(document, [])
            if len(found) != loss.tokens or not _equal(math.fsum(found), loss.loss_sum):
                yield f"the losses of document {document}'s tokens do not add up to its own"


def _parameter(seen: ParameterSeen) -> Iterator[str]:
    update = seen.update
    if update is None or update.trained is None:
        yield "it has no update"
        return
    if update.stale is not None:
        yield "it has weights that no model got"
    prints = (seen.gradient, *seen.parts, update.first_moment, update.second_moment, update.change, update.trained)
    if any(len(one.projections) != PROJECTIONS for one in prints):
        yield f"a fingerprint has not {PROJECTIONS} projections"
    if replace(seen, parts=[], update=None) != ParameterSeen(name=seen.name, sharded=False, gradient=seen.gradient):
        yield "it is a shard"
    whole = [seen.gradient.norm_sq, *seen.gradient.projections]
    sums = [math.fsum(values) for values in zip(*([one.norm_sq, *one.projections] for one in seen.parts))]
    scale = math.sqrt(abs(seen.gradient.norm_sq))
    if sums and not all(abs(a - b) <= _EXACT * max(scale, scale**2) for a, b in zip(sums, whole)):
        yield "its parts do not add up to it"


def _second_training(record: RankRecord) -> Iterator[str]:
    """The training in the cell's dtype, from which bounds follow."""
    training = record.legs[0].training if len(record.legs) == 1 and record.legs[0].leg == "noise-dtype" else None
    if training is None:
        yield "the training that bounds follow from is missing"
        return
    (leg,), (first, *later) = record.legs, record.steps
    parameters = [replace(one, parts=[], update=None) for one in record.parameters]
    forms: tuple[tuple[Any, Any], ...] = (
        (
            [replace(seen, gradient=_NONE) for seen in leg.parameters],
            [replace(seen, gradient=_NONE) for seen in parameters],
        ),
        (
            [(seen.layer, seen.documents.keys()) for seen in leg.activations],
            [(seen.layer, seen.documents.keys()) for seen in record.activations],
        ),
        (leg.token_count, first.token_count),
        (leg.time_s, 0.0),
        (training.changes | training.trained | training.merged, {}),  # `apart` has how far weights may be off
    )
    if not _same_tokens(leg, first) or any(one != other for one, other in forms):
        yield "the training that bounds follow from is of another step 0"
    if any(seen.grad_norm is None or not _same_tokens(seen, right) for seen, right in zip(training.steps, later)):
        yield "the training that bounds follow from has other documents"
    names = {seen.name for seen in record.parameters}
    held = [
        ([seen.after for seen in training.steps], [seen.step for seen in record.steps[1:]]),
        ([seen.after for seen in training.evaluations], [seen.after for seen in record.evaluations]),
        (training.apart.keys(), names),
        (len(training.expert_biases), len(record.expert_biases)),
    ]
    if any(found != right for found, right in held):
        yield "the training that bounds follow from has other steps or parameters"
    if any(min(far.change, far.trained) < 0 for far in training.apart.values()):
        yield "a distance between trainings is below 0"


def _same_tokens(one: LegSeen | LaterSeen, other: StepSeen) -> bool:
    """Whether both have the losses of the same tokens."""
    losses = math.fsum(loss.loss_sum for loss in one.documents.values())
    counts = [{document: loss.tokens for document, loss in side.documents.items()} for side in (one, other)]
    return counts[0] == counts[1] and (_equal(one.loss_sum, losses) or not math.isfinite(losses))


def _equal(one: float, other: float) -> bool:
    return abs(one - other) <= _EXACT * abs(other)
