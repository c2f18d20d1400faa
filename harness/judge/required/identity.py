"""Checks that files, attempt, result and records are those of this cell and of one attempt, before anything else.

After a problem here no check runs: the evidence is of something else, or checks cannot read it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import get_args

from harness.core.outcomes import NODE_RULES
from harness.core.packing.fields import BATCH
from harness.core.run.cell_result import MOST_CONTENTION, CellResult
from harness.core.run.records import SCHEMA_VERSION, BatchSeen, RankRecord
from harness.core.run.states import CellStatus
from harness.core.serialization import to_jsonable
from harness.judge.evidence.cell_evidence import CellEvidence

_LATEST = 4102444800.0  # 2100-01-01, seconds since the epoch
_LONGEST_S = 366 * 86400.0  # of any time in one attempt
_MOST_BYTES = 2**60  # of one rank's memory
_STATUSES = get_args(CellStatus)


def untrusted(evidence: CellEvidence) -> str:
    """Why the evidence cannot be judged at all, with file, rank and field; empty if it can."""
    return next(_problems(evidence), "")


def _problems(evidence: CellEvidence) -> Iterator[str]:
    yield from evidence.damaged
    result = evidence.result
    if result is not None:
        yield from (f"result.json: {problem}" for problem in _result(evidence, result))
    if not evidence.records:
        why = result.reason if result else "the cell has not run, or its agent died"
        yield f"no rank records: {why or 'no reason given'}"
    yield from _config(evidence)
    yield from _baseline(evidence)
    for rank in sorted(evidence.records):
        problem = next(_record(evidence, rank, evidence.records[rank]), "")
        if problem:
            yield f"record of rank {rank}: {problem}"


def _config(evidence: CellEvidence) -> Iterator[str]:
    """config.json (what the ranks ran) must equal plan.json (what they were to run)."""
    config, planned = evidence.config, evidence.cell.config
    if config is None:
        yield "config.json is missing, so what the ranks ran is unknown"
    elif config != planned:
        ran, requested = to_jsonable(config), to_jsonable(planned)
        name = next(name for name in requested if ran[name] != requested[name])
        yield f"config.json has {name} {ran[name]!r}, plan.json {requested[name]!r}"


def _baseline(evidence: CellEvidence) -> Iterator[str]:
    """Impossible times of earlier runs."""
    for samples in evidence.before.samples.values() if evidence.before else ():
        for sample in samples:
            if not 0 < sample.seconds <= _LONGEST_S:
                yield f"baseline.json: run {sample.run_id} took {sample.seconds!r} s"


def rejection_problem(evidence: CellEvidence) -> str:
    """What contradicts the status `rejected`; empty if nothing does. A cell that ran was not rejected."""
    result = evidence.result
    assert result is not None
    if evidence.damaged:
        return evidence.damaged[0]
    problem = result_problem(evidence, result)
    if not problem and evidence.records:
        problem = f"status is rejected, but {len(evidence.records)} ranks left records"
    if not problem and (wrong := next(_config(evidence), "")):
        return wrong
    if not problem and (result.rejection is None or not result.rejection.rule or not result.rejection.reason):
        problem = "status is rejected, but no rule with a reason is named"
    if not problem and result.rejection is not None and result.rejection.rule not in NODE_RULES:
        problem = f"status is rejected by {result.rejection.rule!r}, which is no rule that nodes decide"
    return f"result.json: {problem}" if problem else ""


def result_problem(evidence: CellEvidence, result: CellResult) -> str:
    """Why result.json is not of this attempt, or impossible; empty if nothing is wrong."""
    return next(_result(evidence, result), "")


def _result(evidence: CellEvidence, result: CellResult) -> Iterator[str]:
    if result.schema_version != SCHEMA_VERSION:
        yield f"schema_version {result.schema_version}, this harness reads {SCHEMA_VERSION}"
    if result.cell != evidence.cell.id:
        yield f"it belongs to cell {result.cell}"
    if result.attempt != evidence.attempt:
        yield f"it belongs to attempt {result.attempt}, but is in the folder of attempt {evidence.attempt}"
    if result.status not in _STATUSES:
        yield f"status is {result.status!r}, not one of {', '.join(_STATUSES)}"
    ranks = [ending.rank for ending in result.ranks]
    if len(set(ranks)) != len(ranks) or not set(ranks) <= set(range(evidence.layout.world_size)):
        yield f"it has endings of ranks {ranks}, the layout has {evidence.layout.world_size} ranks"
    if not 0 <= result.started <= result.finished <= _LATEST:
        yield f"it started at {result.started!r} and finished at {result.finished!r}"
    if not 0 <= result.steps_s <= _LONGEST_S:
        yield f"its steps took {result.steps_s!r} s"
    asked_s = evidence.cell.config.deadline_s
    if result.deadline_s and not asked_s <= result.deadline_s <= MOST_CONTENTION * asked_s:
        yield f"its ranks had {result.deadline_s!r} s, the cell's deadline is {asked_s!r} s"


def _record(evidence: CellEvidence, rank: int, record: RankRecord) -> Iterator[str]:
    layout, steps = evidence.layout, len(evidence.steps)
    if record.schema_version != SCHEMA_VERSION:
        yield f"schema_version {record.schema_version}, this harness reads {SCHEMA_VERSION}"
    if record.cell != evidence.cell.id:
        yield f"it belongs to cell {record.cell}"
    if record.run_id != evidence.run_id:
        yield f"it belongs to {f'run {record.run_id}' if record.run_id else 'no run'}, not to {evidence.run_id}"
    if record.attempt != evidence.attempt:
        yield f"it belongs to attempt {record.attempt}, but is in the folder of attempt {evidence.attempt}"
    if record.rank != rank:
        yield f"it belongs to rank {record.rank}"
    if not 0 <= rank < layout.world_size:
        yield f"rank {rank} does not fit a layout of {layout.world_size} ranks"
    if record.place != layout.coordinates(rank):
        yield f"its place is {record.place}, the layout puts it at {layout.coordinates(rank)}"
    yield from _failure(record)
    yield from _indices(evidence, record)
    completed = record.ended == "completed"
    found = [seen.step for seen in record.steps]
    if found != list(evidence.steps)[: len(found)] or (completed and len(found) != steps):
        yield f"its ending is {record.ended}, but it contains steps {found} of {steps}"
    legs, held = [leg.name for leg in evidence.legs_planned], [seen.leg for seen in record.legs]
    if held != legs[: len(held)] or (completed and len(held) != len(legs)):
        yield f"its ending is {record.ended}, but it contains canary legs {held} of {legs}"
    limit = record.environment.get("memory_limit_bytes", "0")
    if not (limit.isascii() and limit.isdigit() and len(limit) < 20):
        yield f"environment.memory_limit_bytes is {limit[:40]!r}, not a number of bytes"
    yield from _impossible(record)


def _failure(record: RankRecord) -> Iterator[str]:
    if record.ended == "completed" and record.failure is not None:
        yield f"its ending is completed, but it contains a failure, {record.failure.type}"
    if record.ended == "raised" and record.failure is None:
        yield "its ending is raised, but it contains no failure"


def _impossible(record: RankRecord) -> Iterator[str]:
    """Impossible times and sizes; reports show these values, of failed ranks too."""
    times = [("setup_s", record.setup_s)]
    times += [(f"steps: step {seen.step}: time_s", seen.time_s) for seen in record.steps]
    times += [(f"steps: step {seen.step}: busy_s", seen.busy_s) for seen in record.steps]
    times += [(f"legs: {leg.leg}: time_s", leg.time_s) for leg in record.legs]
    times += [(f"timings: {seen.load}: seconds", seen.seconds) for seen in record.timings]
    sizes = [(name, getattr(record, name) or 0) for name in ("peak_memory_bytes", "peak_reserved_bytes")]
    for most, unit, values in ((_LONGEST_S, "s", times), (_MOST_BYTES, "bytes", sizes)):
        for name, value in values:
            if value > most:
                yield f"{name} is {value:.3g} {unit}, more than is possible"


def _indices(evidence: CellEvidence, record: RankRecord) -> Iterator[str]:
    """Indices and names that checks look up, and that are out of range."""
    batches = [*record.batches, *(batch for leg in record.legs for batch in leg.batches)]
    held = len(record.packed_params)
    used = {batch.params for batch in batches} | {layer.params for layer in (*record.layers, *record.recomputed)}
    for number in used - {None}:
        if number is not None and not 0 <= number < held:
            yield f"it refers to packed params {number}, but holds only {held}"
    counts = {step: len(evidence.plan[step][record.place.dp]) for step in evidence.fetched_steps}
    keys = [(batch.step, batch.chunk, batch.micro_batch) for batch in record.batches]
    if len(set(keys)) != len(keys):
        yield "batches: a micro-batch is listed twice"
    for step, chunk, number in keys:
        if not (0 <= chunk < evidence.layout.vpp and 0 <= number < counts.get(step, 0)):
            yield (
                f"batches: there is no step {step}, chunk {chunk}, micro-batch {number}: chunks {evidence.layout.vpp}, "
                f"micro-batches by step {counts}"
            )
    yield from (problem for batch in batches for problem in _first(batch))
    for work in record.workloads:
        if work.step not in evidence.planned_steps:
            yield f"workloads: there is no step {work.step}"
    heads = {proof.module for proof in record.imports}
    if unknown := sorted(record.modules.keys() - heads):
        yield f"modules: {unknown[0]} is not in imports"
    model = evidence.cell.config.model
    for router in record.routers:
        rows = (len(router.real), len(router.padding))
        experts = {len(values) for share in (*router.real, *router.padding) for values in (share.counts, share.scores)}
        if model.moe is None or set(rows) != {evidence.cell.config.micro_batch_size} or experts != {model.moe.experts}:
            yield f"routers: layer {router.layer} has {rows} rows of {sorted(experts)} experts"


def _first(batch: BatchSeen) -> Iterator[str]:
    """Problems of `mismatches` and `first`, which checks report."""
    for name in (*BATCH, "log_probs"):
        seen = getattr(batch, name)
        if seen is not None and (seen.mismatches < 0 or (seen.first is not None and len(seen.first) != 4)):
            yield f"batches: {name} of micro-batch {batch.micro_batch} has {seen.mismatches} mismatches, {seen.first}"
        if seen is not None and seen.first is not None and not seen.mismatches:
            yield f"batches: {name} of micro-batch {batch.micro_batch} names a mismatch but counts none"
