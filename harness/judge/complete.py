"""The evidence that a verdict requires: of this cell and attempt, of every rank, step, layer, leg and load.

A check compares what is recorded. What is missing it would compare with nothing and pass, so a cell whose ranks all
completed is ERROR unless everything is there that its configuration and the plan say. What is there is believed:
result.json seals it, and that the probe contradicts itself nowhere is a matter of its tests.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence

from harness.core.cell.canary_legs import Leg
from harness.core.cell.config import CellConfig
from harness.core.cell.reports import WITH_COUNTERS, counting_ranks, counts_lengths, counts_packed, entry_point, logged
from harness.core.cell.timing import TimingConfig
from harness.core.outcomes import NODE_RULES
from harness.core.packing.fields import OFFSETS, PADDED
from harness.core.run.record_file import digest_of_choices
from harness.core.run.records import (
    SCHEMA_VERSION,
    CellResult,
    LegSeen,
    RankRecord,
    ReportedStep,
    StepSeen,
    TrainingSeen,
)
from harness.core.run.tensor_records import ActivationSeen, ParameterSeen
from harness.core.serialization import to_jsonable
from harness.core.upstream import heads
from harness.features.adapters import complete as adapters
from harness.features.adapters.config import is_adapter
from harness.features.attention.limits import kind_of, possible_kinds
from harness.features.experts import complete as experts
from harness.features.optimizer import complete as optimizer
from harness.judge.evidence.assemble import whole_state
from harness.judge.evidence.cell_evidence import CellEvidence
from harness.judge.evidence.expected import OF_EXPERT, Expected, keys_problems, stage_problems
from harness.judge.evidence.numbers import scan
from harness.judge.evidence.timings import TURN, on_gpu, paired_times
from harness.judge.evidence.truth import fields_used, is_last
from harness.judge.import_check import import_problem

NEEDED = ("torch", "megatron.core")  # modules that every cell trains with
ENVIRONMENT = ("host", "python", "device", "processor", "torch_device", "backend", "attention", "dtype")
_MAX_NAMED = 3


def untrusted(evidence: CellEvidence) -> str:
    """Return why the files are not of this cell and attempt, or ''. If they are not, no check may read them."""
    return next(_foreign(evidence), "")


def rejection_problem(evidence: CellEvidence) -> str:
    """Return what contradicts the status `rejected`, or ''. A cell that ran was not rejected."""
    result = evidence.result
    assert result is not None
    rule = result.rejection.rule if result.rejection is not None and result.rejection.reason else ""
    problems = [*evidence.damaged, *_result_identity(evidence, result), *_config(evidence)]
    if evidence.records:
        problems.append(f"result.json: status is rejected, but {len(evidence.records)} ranks left records")
    if rule not in NODE_RULES:
        named = f"by {rule!r}, which is no rule that nodes decide" if rule else "but no rule with a reason is named"
        problems.append(f"result.json: status is rejected{'' if rule else ','} {named}")
    return problems[0] if problems else ""


def incomplete(evidence: CellEvidence) -> str:
    """Return what is missing of a cell whose ranks all completed; '' for any other, which is judged by what exists."""
    if any(ending.ended != "completed" for ending in evidence.endings):
        return ""
    problems = list(missing(evidence))
    more = f"; {len(problems) - _MAX_NAMED} more" if len(problems) > _MAX_NAMED else ""
    return f"incomplete evidence: {'; '.join(problems[:_MAX_NAMED])}{more}" if problems else ""


def result_problem(evidence: CellEvidence, result: CellResult) -> str:
    """Return why result.json is not of this attempt, or ''."""
    return next(_result_identity(evidence, result), "")


def _foreign(evidence: CellEvidence) -> Iterator[str]:
    yield from evidence.damaged
    result = evidence.result
    if result is not None:
        yield from _result_identity(evidence, result)
    if not evidence.records:
        why = result.reason if result else "the cell has not run, or its agent died"
        yield f"no rank records: {why or 'no reason given'}"
    yield from _config(evidence)
    for rank, record in sorted(evidence.records.items()):
        yield from (f"record of rank {rank}: {problem}" for problem in _record_identity(evidence, rank, record))


def _config(evidence: CellEvidence) -> Iterator[str]:
    """Compare config.json (what the ranks ran) with plan.json (what they were to run)."""
    config, planned = evidence.config, evidence.cell.config
    if config is None:
        yield "config.json is missing, so what the ranks ran is unknown"
    elif config != planned:
        ran, requested = to_jsonable(config), to_jsonable(planned)
        name = next(name for name in requested if ran[name] != requested[name])
        yield f"config.json has {name} {ran[name]!r}, plan.json {requested[name]!r}"


def _identity(evidence: CellEvidence, content: CellResult | RankRecord) -> Iterator[str]:
    if content.schema_version != SCHEMA_VERSION:
        yield f"schema_version {content.schema_version}, this harness reads {SCHEMA_VERSION}"
    if content.cell != evidence.cell.id:
        yield f"it belongs to cell {content.cell}"
    if content.attempt != evidence.attempt:
        yield f"it belongs to attempt {content.attempt}, but is in the folder of attempt {evidence.attempt}"


def _result_identity(evidence: CellEvidence, result: CellResult) -> Iterator[str]:
    yield from (f"result.json: {problem}" for problem in _identity(evidence, result))
    ranks, world = [ending.rank for ending in result.ranks], evidence.layout.world_size
    if len({*ranks}) != len(ranks) or not {*ranks} <= {*range(world)}:
        yield f"result.json: it has endings of ranks {ranks}, the layout has {world} ranks"


def _record_identity(evidence: CellEvidence, rank: int, record: RankRecord) -> Iterator[str]:
    yield from _identity(evidence, record)
    layout, completed = evidence.layout, record.ended == "completed"
    if record.run_id != evidence.run_id:
        yield f"it belongs to {f'run {record.run_id}' if record.run_id else 'no run'}, not to {evidence.run_id}"
    if not 0 <= rank < layout.world_size:
        yield f"rank {rank} does not fit a layout of {layout.world_size} ranks"
    if record.place != layout.coordinates(rank):
        yield f"its place is {record.place}, the layout puts it at {layout.coordinates(rank)}"
    if (record.failure is not None) != (record.ended == "raised") and record.ended in ("completed", "raised"):
        yield f"its ending is {record.ended}, but it contains {'a' if record.failure else 'no'} failure"
    steps, legs = list(evidence.steps), [leg.name for leg in evidence.legs_planned]
    for what, held, planned in (
        ("steps", [recorded.step for recorded in record.steps], steps),
        ("canary legs", [recorded.leg for recorded in record.legs], legs),
    ):
        if held != planned[: len(held)] or (completed and len(held) != len(planned)):
            yield f"its ending is {record.ended}, but it contains {what} {held} of {planned}"


def missing(evidence: CellEvidence) -> Iterator[str]:
    """Yield everything that is missing of a cell whose ranks all completed."""
    expected = Expected(evidence)
    yield from (f"result.json {problem}" for problem in _ended(evidence))
    partial = False
    for rank, record in evidence.records.items():
        for subject in (_facts, _legs, _model, adapters.missing, experts.missing, _reports, _states, _times):
            for problem in subject(expected, record):
                partial = True
                yield f"record of rank {rank}: {problem}"
    yield from (f"oracle.json: {problem}" for problem in _oracle(evidence))
    yield from adapters.missing_frozen(expected, evidence.records)
    if not partial:
        yield from _together(expected, evidence.records)


def _ended(evidence: CellEvidence) -> Iterator[str]:
    """Require that the supervisor saw every rank complete."""
    result, world = evidence.result, evidence.layout.world_size
    if result is None:
        yield "is missing, so how the attempt ended is unknown"
    elif result.status == "completed":
        if len(result.ranks) != world:
            yield f"has endings of {len(result.ranks)} of {world} ranks"
        for ending in result.ranks:
            if (ending.ended, ending.exit_code) != ("completed", 0):
                how = f"{ending.ended} with exit code {ending.exit_code}"
                yield f"says that rank {ending.rank} {how}, its record that it completed"


def _facts(expected: Expected, record: RankRecord) -> Iterator[str]:
    """Require which code ran, on what, with the kernel and dtype that the cell asks for."""
    facts, config = record.environment, expected.config
    if absent := [name for name in ENVIRONMENT if not facts.get(name)]:
        yield f"environment: {absent[0]} is missing"
        return
    kind = facts["torch_device"].partition(":")[0]
    if config.device not in ("auto", kind):
        yield f"environment: torch_device is {facts['torch_device']}, the cell asks for {config.device}"
    possible = possible_kinds(config, kind)
    if kind_of(facts["attention"]) not in possible:
        asked = f"the cell asks for {config.attention}: {' or '.join(possible)}"
        yield f"environment: attention is {facts['attention']!r}, {asked}"
    if facts["dtype"] != config.dtype:
        yield f"environment: dtype is {facts['dtype']}, the cell's is {config.dtype}"
    if kind == "cpu" and not record.cpu_stubs:
        yield "cpu_stubs: none, so which calls of CUDA were replaced is unknown"
    if kind == "cuda" and facts["backend"] == "gloo" and not record.gloo_stubs:
        yield "gloo_stubs: none, so which collectives were replaced is unknown"
    proofs = {proof.module: proof for proof in record.imports}
    for name in NEEDED:
        if name not in proofs or not proofs[name].version or not proofs[name].path:
            yield f"imports: {name} is missing, so which code ran is unknown"
    if not record.modules.get("megatron.core"):
        yield "modules: megatron.core is missing"


def _legs(expected: Expected, record: RankRecord) -> Iterator[str]:
    """Require batches, attention layers, steps, evaluations and canary legs."""
    at, steps = record.place, len(expected.evidence.steps)
    if len(record.micro_batches) != steps:
        yield f"micro_batches: {len(record.micro_batches)} counts for {steps} steps"
    work = [(recorded.leg, recorded.step) for recorded in record.workloads]
    if work != expected.workloads:
        path = expected.config.path
        yield (
            f"workloads: recorded for {work}, expected for {expected.workloads}, since the data path {path.name} has "
            f"counts_work={path.counts_work}"
        )
    batches = ((batch.step, batch.chunk, batch.micro_batch) for batch in record.batches)
    yield from keys_problems("batches", batches, expected.once(expected.batch_keys, at.dp))
    for batch in record.batches:
        returns = expected.config.path.returns_log_probs and is_last(expected.config, at.pp, batch.chunk)
        if returns and batch.log_probs is None:
            yield f"batches: step {batch.step}, chunk {batch.chunk}, micro-batch {batch.micro_batch}: no log_probs"
    for name, seen_layers, planned in (
        ("layers", record.layers, expected.once(expected.layer_keys, at.pp, at.dp)),
        ("recomputed", record.recomputed, expected.once(expected.recomputed_keys, at.pp, at.dp)),
    ):
        keys = ((recorded.step, recorded.chunk, recorded.micro_batch, recorded.layer) for recorded in seen_layers)
        yield from keys_problems(name, keys, planned)
    for number, params in enumerate(record.packed_params):
        present = {name for name in (*OFFSETS, *PADDED) if getattr(params, name) is not None}
        if lost := sorted(present - params.forms.keys()):
            yield f"packed_params: number {number} has no form of {lost[0]}"
    for recorded in record.steps:
        yield from (f"steps: step {recorded.step}: {problem}" for problem in _step(expected, record, recorded))
    yield from _evaluations(expected, record)
    for seen_leg, leg in zip(record.legs, expected.evidence.legs_planned):
        yield from (f"legs: {leg.name}: {problem}" for problem in _leg(expected, record, seen_leg, leg))


def _step(expected: Expected, record: RankRecord, recorded: StepSeen) -> Iterator[str]:
    needed: list[tuple[str, object]] = [("grad_norm", recorded.grad_norm)]
    if expected.is_last(record.place):
        needed += [("loss_sum", recorded.loss_sum), ("token_count", recorded.token_count)]
        if expected.config.trained_by_harness and recorded.returned_tokens is None:
            needed.append(("returned_loss, where no number of tokens was returned,", recorded.returned_loss))
    yield from (f"{name} is missing" for name, value in needed if value is None)
    if not (recorded.rates and recorded.decays):
        yield "no learning rate or no decay of the optimizer's groups is there"


def _evaluations(expected: Expected, record: RankRecord) -> Iterator[str]:
    config = expected.config
    evaluated_after, expected_after = (
        [evaluation.after for evaluation in record.evaluations],
        list(config.evaluations.values()),
    )
    if evaluated_after != expected_after:
        if config.trained_by_harness:  # upstream's trainer decides itself: the check `evaluation` reports it
            yield f"evaluations: after steps {evaluated_after}, expected after {expected_after}"
        return
    for number, evaluation in zip(config.evaluations, record.evaluations):
        where = f"evaluations: number {number}"
        planned = len(config.micro_batches(config.train.steps + number)[record.place.dp])
        if evaluation.micro_batches != planned:
            yield f"{where}: {evaluation.micro_batches} micro-batches, the plan has {planned}"
        if expected.is_last(record.place) and (evaluation.loss_sum is None or evaluation.token_count is None):
            yield f"{where}: loss_sum is {evaluation.loss_sum}, token_count {evaluation.token_count}"
        outputs = _outputs(evaluation.activations, expected.outputs(record.place), evaluation.activations)
        yield from (f"{where}: {problem}" for problem in outputs)


def _leg(expected: Expected, record: RankRecord, seen: LegSeen, leg: Leg) -> Iterator[str]:
    if not leg.model:
        yield from _fetched(expected, record, seen, leg)
    layers = expected.outputs(record.place) if leg.backward else []
    yield from _outputs(seen.activations, layers, record.activations)
    names, all_names = _names(seen.parameters), _names(record.parameters)
    if leg.backward and expected.config.fingerprints and names != all_names:
        yield f"parameters: {len(names)} recorded, {len(all_names)} in step 0"
    if leg.trains and seen.training is not None:
        yield from _trained(record, seen.training, [name for name, _ in all_names])
    elif leg.trains:
        yield "its later steps are missing"


def _fetched(expected: Expected, record: RankRecord, seen: LegSeen, leg: Leg) -> Iterator[str]:
    """Require the batches of a leg that does not run the model, whole."""
    keys = ((batch.step, batch.chunk, batch.micro_batch) for batch in seen.batches)
    yield from keys_problems("batches", keys, expected.leg_keys(leg, record.place.dp))
    for batch in seen.batches:
        used = fields_used(expected.config, record.place.pp, batch.chunk)
        lost = [name for name in used if getattr(batch, name) is None]
        if (batch.params is not None) != expected.config.style.packed:
            lost.append("packed params as the path has them")
        yield from (f"batches: chunk {batch.chunk}, micro-batch {batch.micro_batch}: no {name}" for name in lost[:1])


def _trained(record: RankRecord, training: TrainingSeen, names: list[str]) -> Iterator[str]:
    """Require that a leg that trains did all that the training leg did."""
    if any(step.grad_norm is None for step in training.steps):
        yield "steps: a gradient norm is missing"
    for name, later, first in (
        ("steps", training.steps, record.steps[1:]),
        ("evaluations", training.evaluations, record.evaluations),
    ):
        if [step.documents.keys() for step in later] != [step.documents.keys() for step in first]:
            yield f"{name}: their documents are not those of the training leg"
    for name, recorded, wanted in (
        ("steps", [step.after for step in training.steps], [step.step for step in record.steps[1:]]),
        ("evaluations", [later.after for later in training.evaluations], [first.after for first in record.evaluations]),
        ("changes", list(training.changes), names),
        ("trained", list(training.trained), names),
        ("merged", list(training.merged), [weight.name for weight in record.merged if weight.after is not None]),
        ("expert_biases", len(training.expert_biases), len(record.expert_biases)),
    ):
        if recorded != wanted:
            yield f"{name}: not those of the training leg"


def _outputs(
    activations: Sequence[ActivationSeen], layers: Sequence[int], first: Sequence[ActivationSeen]
) -> Iterator[str]:
    """Require outputs of these layers, each for the documents of the first layer of `first`."""
    recorded_layers = [activation.layer for activation in activations]
    if recorded_layers != list(layers):
        yield f"activations: recorded for layers {recorded_layers}, expected for {list(layers)}"
    for activation in activations:
        if first and activation.documents.keys() != first[0].documents.keys():
            expected = sorted(first[0].documents)
            yield f"activations: layer {activation.layer} has documents {sorted(activation.documents)}, not {expected}"


def _names(parameters: Sequence[ParameterSeen]) -> list[tuple[str, bool]]:
    return [(parameter.name, parameter.sharded) for parameter in parameters]


def _model(expected: Expected, record: RankRecord) -> Iterator[str]:
    """Require layer outputs, gradients, updates, the optimizer and predictions of every part of the model."""
    at = record.place
    yield from _outputs(record.activations, expected.outputs(at), record.activations)
    # A trainer that never calls its optimizer has no gradients that a norm counts.
    updated = expected.config.trained_by_harness or any(
        parameter.update and parameter.update.change.norm_sq for parameter in record.parameters
    )
    yield from (f"parameters: {problem}" for problem in _parameters(expected, record, updated=updated))
    yield from optimizer.missing(expected, record, updated=updated)
    yield from (f"gradient_scales: {problem}" for problem in _gradient_scales(expected, record))
    mtp = expected.model.mtp
    depths = range(1, mtp.layers + 1) if mtp and expected.is_last(at) and expected.has_first_step else ()
    heads = [(depth, number) for depth in depths for number in expected.micro_batches(0, at.dp)]
    yield from keys_problems("mtp", ((recorded.depth, recorded.micro_batch) for recorded in record.mtp), heads)


def _parameters(expected: Expected, record: RankRecord, *, updated: bool) -> Iterator[str]:
    """Require every parameter of the stage once, each with its update."""
    needed = expected.fingerprints and bool(expected.chunks_with_weights(record.place.pp))
    if bool(record.parameters) != needed:
        yield f"{len(record.parameters)} recorded, {'some' if needed else 'none'} expected"
    names = [parameter.name for parameter in record.parameters]
    if len({*names}) != len(names):
        yield "one is listed twice"
    if names and expected.model.peft is None:
        yield from stage_problems(expected, record.place, names)
    for parameter in record.parameters:
        if parameter.update is None or parameter.update.trained is None or parameter.update.stale is None:
            yield f"{parameter.name} has no update"
        if parameter.in_norm is None and updated:
            yield f"{parameter.name} has no in_norm"


def _gradient_scales(expected: Expected, record: RankRecord) -> Iterator[str]:
    """Require in the first step the scale of every chunk, of each kind of weight that trains."""
    scaled_chunks = [recorded.chunk for recorded in record.gradient_scales]
    chunks = [*range(expected.layout.vpp)] if expected.has_first_step else []
    if scaled_chunks != chunks:
        yield f"of chunks {scaled_chunks}, not {chunks}"
    with_weights = expected.chunks_with_weights(record.place.pp)
    scales = [recorded for recorded in record.gradient_scales if recorded.chunk in with_weights]
    trained = {".experts." in parameter.name for parameter in record.parameters} if scaled_chunks else set()
    for kind, of_experts in (("dense", False), ("experts", True)):
        held = [getattr(recorded, kind) is not None for recorded in scales]
        # Some chunks have no experts, and with adapters some have no dense weight that trains.
        whole = all(held) if kind == "dense" and expected.model.peft is None else any(held)
        if of_experts in trained and not whole:
            yield f"{kind} is missing"


def _reports(expected: Expected, record: RankRecord) -> Iterator[str]:
    """Require the entry point of upstream's trainer, and every number of every step that its release reports."""
    config, entry = expected.config, entry_point(expected.config)
    if record.entry_point != entry:
        yield f"entry_point is {record.entry_point!r}, expected {entry!r}"
    reported_steps = [reported_step.step for reported_step in record.reported]
    expected_steps = [] if config.trained_by_harness else list(expected.evidence.steps)
    if reported_steps != expected_steps:
        yield f"reported: the trainer reported steps {reported_steps}, expected {expected_steps}"
    if config.trainer in WITH_COUNTERS:  # whether the release counts packed tokens is known, except for a few
        known = counts_packed(config, {proof.module: proof.version for proof in record.imports})
        if record.counts_packed is None or known not in (None, record.counts_packed):
            does = "counts" if known else "does not count"
            yield f"counts_packed is {record.counts_packed!r}, and the release {does} packed tokens"
    for reported_step in record.reported:
        yield from (
            f"reported: step {reported_step.step}: {name} is missing"
            for name in _unreported(expected, record, reported_step)
        )


def _unreported(expected: Expected, record: RankRecord, reported_step: ReportedStep) -> Iterator[str]:
    config = expected.config
    if counting_ranks(config, record.place.pp):
        due = ["flops"]
        # What the scheduler counts is required as workloads.
        if record.counts_packed and counts_lengths(config) and not config.path.scheduled:
            due += ["packed_tokens", "packed_squares"]
        yield from (name for name in due if getattr(reported_step, name) is None)
    prints = record.rank == expected.layout.world_size - 1 and len(logged(config, reported_step.step)) > 0
    if prints and reported_step.printed is None:
        yield "the printed line"


def _states(expected: Expected, record: RankRecord) -> Iterator[str]:
    """Require the states of a cell that continues from a checkpoint: when saved, once loaded, and at the end."""
    saved_after, expected_after = [state.after for state in record.states], list(expected.config.stored)
    if saved_after != expected_after:
        yield f"states: recorded after steps {saved_after}, expected after {expected_after}"
        return
    exact = len(expected_after) > 1  # the same layout continues
    names = [(parameter.name, parameter.sharded) for parameter in record.parameters]
    for number, state in enumerate(record.states):
        held = [(parameter.name, parameter.sharded) for parameter in state.parameters]
        if bool(held) != bool(expected.chunks_with_weights(record.place.pp)) or (names and held != names):
            yield f"states: after step {state.after}: parameters are not those of step 0"
        if exact and not all(parameter.digest for parameter in state.parameters):
            yield f"states: after step {state.after}: digests are missing"
        if exact and number == 0 and not state.random:
            yield f"states: after step {state.after}: the state of random generators is missing"


def _times(expected: Expected, record: RankRecord) -> Iterator[str]:
    """Require every load of the timing leg in every round; turns may end early, with the other stack."""
    timing = expected.config.timing
    if not timing.timed:
        return
    loads = _loads(timing, record.rank == 0, {*record.untimed})
    rounds: dict[tuple[str, int], list[int]] = {}
    for timed in record.timings:
        rounds.setdefault((timed.load, timed.documents), []).append(timed.round)
    yield from (
        f"timings: {timed.load} took {timed.seconds!r} s"
        for timed in record.timings
        if not 0 < timed.seconds < math.inf
    )
    cut = {TURN} if TURN[0] in record.untimed else set()
    if not loads - cut <= rounds.keys() <= loads:
        yield f"timings: recorded for {sorted(rounds)}, expected for {sorted(loads)}"
    for load, numbers in rounds.items():
        expected_rounds = list(range(len(numbers) if load in cut else timing.rounds))
        if sorted(numbers) != expected_rounds:
            yield f"timings: {load[0]} with {load[1]} documents has rounds {sorted(numbers)}, not {expected_rounds}"
    yield from (f"untimed: {name} has no reason" for name, why in record.untimed.items() if not why)


def _loads(timing: TimingConfig, first: bool, untimed: set[str]) -> set[tuple[str, int]]:
    """Return the (load, documents) that a rank times; only rank 0 times the rotary function."""
    names = ["rotary", "rotary_other"] if first else []
    loads = {(name, count) for name in [*names, "step"] for count in timing.documents}
    others = {name for name, requested in (("unpacked", timing.unpacked), ("full", timing.full_rows)) if requested}
    loads |= {(name, 0) for name in ({"packed"} if others - untimed else set()) | others}
    loads |= {TURN} if timing.turns else set()
    return {load for load in loads if load[0] not in untimed or load[0] == TURN[0]}


def _together(expected: Expected, records: Mapping[int, RankRecord]) -> Iterator[str]:
    """Compare what all ranks hold together: one code, the parameters of the reference, and what was saved."""
    ranks = sorted(records)
    yield from _same_code(expected, records)
    for name in ("backend", "attention"):  # with `auto`, nodes that are not equal may choose others
        values = {rank: records[rank].environment[name] for rank in ranks}
        differing = next((rank for rank in ranks if values[rank] != values[ranks[0]]), None)
        if differing is not None:
            there, here = values[differing], values[ranks[0]]
            yield f"environment: {name} is {there!r} on rank {differing}, {here!r} on rank {ranks[0]}"
    stages: dict[int, tuple[int, list[tuple[str, bool]]]] = {}
    for rank in ranks:
        names = [parameter for parameter in _names(records[rank].parameters) if not OF_EXPERT.search(parameter[0])]
        first, first_names = stages.setdefault(records[rank].place.pp, (rank, names))
        if names != first_names:
            odd = sorted({*names} ^ {*first_names}) or names
            yield f"record of rank {rank}: parameters: {odd[0][0]} differs from rank {first} of its stage"
    yield from _all_parameters(expected, records)
    yield from _same_states(expected, records)


def _same_code(expected: Expected, records: Mapping[int, RankRecord]) -> Iterator[str]:
    """Require that every rank imported the same files, and the control in the same stack."""
    ranks, control = sorted(records), expected.evidence.control
    same_stack = control is not None and control.cell.config.stack == expected.config.stack
    others = [(f"rank {rank}", records[rank]) for rank in ranks[1:]]
    others += [("the control", record) for record in control.records.values()] if control and same_stack else []
    proofs = {proof.module: proof for proof in records[ranks[0]].imports}
    for who, record in others:
        for proof in record.imports:
            if who == "the control" and proof.module not in heads():
                continue
            own = proofs.get(proof.module)
            if own is not None and own != proof:
                code = f"{proof.module} is {proof.version} from {proof.path}"
                yield f"record of {who}: imports: {code}, on rank {ranks[0]} {own.version} from {own.path}"


def _same_states(expected: Expected, records: Mapping[int, RankRecord]) -> Iterator[str]:
    """Require one set of checkpoint parameters per stage, and over all ranks those that were saved."""
    saved = expected.evidence.saved
    for after in expected.config.stored:
        stages: dict[int, tuple[int, list[tuple[str, bool]]]] = {}
        for rank in sorted(records):
            state = next(stored for stored in records[rank].states if stored.after == after)
            names = [
                (parameter.name, parameter.sharded)
                for parameter in state.parameters
                if not OF_EXPERT.search(parameter.name)
            ]
            first, first_names = stages.setdefault(records[rank].place.pp, (rank, names))
            if names != first_names:
                yield f"record of rank {rank}: states: parameters after step {after} are not those of rank {first}"
        if saved is not None:
            held, needed = whole_state(records, after).keys(), whole_state(saved.records, after).keys()
            if odd := sorted(held ^ needed):
                yield f"states: {odd[0]} after step {after} is {'not saved' if odd[0] in held else 'not loaded'}"


def _all_parameters(expected: Expected, records: Mapping[int, RankRecord]) -> Iterator[str]:
    reference = expected.evidence.reference
    if reference is None or not (expected.config.fingerprints and reference.cell.config.fingerprints):
        return
    held, expected_names = (
        {parameter.name for record in side.values() for parameter in record.parameters}
        for side in (records, reference.records)
    )
    if expected.model.tied:  # later stages hold a copy of the embedding under the output layer's name
        held, expected_names = (
            {name for name in names if not name.startswith("output_layer.")} for names in (held, expected_names)
        )
    if expected.model.peft:  # the check frozen_weights reports others that train
        held, expected_names = ({name for name in names if is_adapter(name)} for names in (held, expected_names))
    if held != expected_names:
        name, origin = min(held ^ expected_names), expected.evidence.origin
        side = "no rank holds" if name in expected_names else f"the {origin} does not hold"
        yield f"parameters: {side} {name}; the cell has {len(held)}, the {origin} {len(expected_names)}"


def _oracle(evidence: CellEvidence) -> Iterator[str]:
    """Require the oracle's record: of the model that rank 0 built, with all that a cell is compared with."""
    trained = any(record.steps for record in evidence.records.values())
    oracle, first = evidence.oracle, evidence.records.get(0)
    if oracle is None:
        yield from ["it is missing, so there is nothing to compare the cell with"] if trained else []
        return
    if oracle.schema_version != SCHEMA_VERSION:
        yield f"schema_version {oracle.schema_version}, this harness reads {SCHEMA_VERSION}"
    if oracle.cell != evidence.cell.id:
        yield f"it belongs to cell {oracle.cell}"
    if first is not None and oracle.built != first.built:
        yield "its model is not the one that upstream built on rank 0"
    if oracle.failed:
        yield f"the oracle failed, which is a defect of the harness: {oracle.failed.strip().splitlines()[-1]}"
    elif oracle.record is None:
        yield from [] if oracle.not_modelled else ["it must hold numbers, or one reason why it has none"]
    else:
        yield from _computed(evidence, oracle.record)
        parts = [part.records for part in (evidence.saved, evidence) if part is not None]
        if oracle.choices != digest_of_choices([records[rank] for records in parts for rank in sorted(records)]):
            yield "it followed other choices of routers than the ranks recorded"


def _computed(evidence: CellEvidence, record: RankRecord) -> Iterator[str]:
    config, layers = evidence.cell.config, [*range(evidence.cell.config.model.layers + 1)]
    steps = [recorded.step for recorded in record.steps]
    if steps != list(range(config.train.steps)):
        yield f"it has steps {steps} of {config.train.steps}"
        return
    for recorded, step in zip(record.steps, evidence.plan):
        documents = {placed.document.index for replica in step for truth in replica for placed in truth.batch.placed}
        if recorded.documents.keys() != documents:
            yield f"step {recorded.step}: its documents are not those of the packing plan"
        if recorded.loss_sum is None or recorded.grad_norm is None or not (recorded.rates and recorded.decays):
            yield f"step {recorded.step}: it lacks the loss, the gradient norm, a learning rate or a decay"
    if not record.steps[0].tokens:
        yield "step 0: it lacks the losses of tokens"
    held = {activation.layer: activation.documents.keys() for activation in record.activations}
    if held != {layer: {*evidence.document_positions[0]} for layer in layers}:
        yield "it lacks the output of a layer for a document"
    if not record.parameters or any(
        parameter.update is None or parameter.update.trained is None for parameter in record.parameters
    ):
        yield "it lacks parameters or their updates"
    yield from _computed_evaluations(config, record, layers)
    choices = [choice for rank in evidence.records.values() for choice in rank.choices]
    chosen = {
        (choice.step, choice.layer, dropped) for choice in choices for dropped in {False, choice.taken is not None}
    }
    if {(followed.step, followed.layer, followed.dropped) for followed in record.followed} != chosen:
        yield f"it follows {len(record.followed)} choices of steps and layers, the ranks recorded {len(chosen)}"
    yield from _second_training(record)
    late = ("step", "after")
    bad = [number for number in scan(record).bad if max(number.where.get(name, 0) for name in late) < evidence.diverges]
    yield from (f"{number.what} is {number.value}" for number in bad[:1])


def _computed_evaluations(config: CellConfig, record: RankRecord, layers: Sequence[int]) -> Iterator[str]:
    if [evaluation.after for evaluation in record.evaluations] != list(config.evaluated):
        yield f"it has {len(record.evaluations)} of {len(config.evaluated)} evaluations"
    for number, evaluation in enumerate(record.evaluations):
        rows = config.micro_batches(config.train.steps + number)
        placed = {entry.document.index for replica in rows for batch in replica for entry in batch.placed}
        if evaluation.loss_sum is None or evaluation.documents.keys() != placed:
            yield f"it lacks losses in the evaluation after step {evaluation.after}"
        outputs = {activation.layer: activation.documents.keys() for activation in evaluation.activations}
        if outputs != dict.fromkeys(layers, evaluation.documents.keys()):
            yield f"it lacks the output of a layer for a document in the evaluation after step {evaluation.after}"


def _second_training(record: RankRecord) -> Iterator[str]:
    """Require that the oracle's training in the cell's dtype, from which bounds follow, has all the first one has."""
    leg = record.legs[0] if len(record.legs) == 1 else None
    training = leg.training if leg is not None else None
    if leg is None or training is None:
        yield "the training that bounds follow from is missing"
        return
    names, first = [recorded.name for recorded in record.parameters], record.steps[0]
    held: list[tuple[object, object]] = [
        (leg.documents.keys(), first.documents.keys()),
        ([recorded.name for recorded in leg.parameters], names),
        (
            [(activation.layer, activation.documents.keys()) for activation in leg.activations],
            [(activation.layer, activation.documents.keys()) for activation in record.activations],
        ),
        ([recorded.after for recorded in training.steps], [recorded.step for recorded in record.steps[1:]]),
        ([recorded.after for recorded in training.evaluations], [recorded.after for recorded in record.evaluations]),
        (
            [recorded.documents.keys() for recorded in training.steps],
            [recorded.documents.keys() for recorded in record.steps[1:]],
        ),
        (
            [recorded.documents.keys() for recorded in training.evaluations],
            [recorded.documents.keys() for recorded in record.evaluations],
        ),
        (
            [
                {activation.layer: activation.documents.keys() for activation in recorded.activations}
                for recorded in training.evaluations
            ],
            [
                {activation.layer: activation.documents.keys() for activation in recorded.activations}
                for recorded in record.evaluations
            ],
        ),
        (training.apart.keys(), {*names}),
        (len(training.expert_biases), len(record.expert_biases)),
    ]
    if any(second != expected for second, expected in held) or any(
        recorded.grad_norm is None for recorded in training.steps
    ):
        yield "the training that bounds follow from lacks steps, documents, layers or parameters"


def uncompared(evidence: CellEvidence) -> str:
    """Return why times cannot be compared with earlier runs although the matrix asks for it, or ''.

    Too few earlier runs are no damage: `slower_than_history` says so.
    """
    if evidence.history is None and evidence.before is None:
        return ""
    if evidence.before is None:
        return "baseline.json has no entry of this cell"
    if evidence.history is not None and evidence.before.runs != evidence.history.runs:
        return f"baseline.json says {evidence.before.runs} runs, plan.json {evidence.history.runs}"
    if on_gpu(evidence):
        return ""
    for step in list(evidence.steps)[1:]:
        for record, recorded in evidence.step_records(step):
            if not recorded.busy_s > 0:
                return f"record of rank {record.rank}: steps: step {step}: busy_s is {recorded.busy_s!r}"
    return ""


def other_device(evidence: CellEvidence, other: CellEvidence) -> str:
    """Return how the kinds of device of two cells differ; '' if they do not, or are unknown."""
    own, others = _kinds(evidence), _kinds(other)
    return f"it ran on {others}, this cell on {own}" if own and others and own != others else ""


def _kinds(evidence: CellEvidence) -> str:
    """Return the kinds of device that the ranks of a cell recorded, e.g. "cuda"."""
    devices = [record.environment.get("torch_device", "") for record in evidence.records.values()]
    return " and ".join(sorted({device.partition(":")[0] for device in devices if device}))


def base_problem(evidence: CellEvidence) -> str:
    """Return why the cell cannot be timed against its base; '' if it can or need not be, or a rank states why not."""
    timing, base = evidence.cell.config.timing, evidence.base
    if not timing.turns or timing.first:
        return ""
    problem = _base_problem(evidence, base, timing.rounds) if base else "it is not in the run"
    name = f"its base, cell {evidence.cell.base}" if evidence.cell.base else "its base"
    return f"the cell cannot be timed against {name}: {problem}" if problem else ""


def _base_problem(evidence: CellEvidence, base: CellEvidence, rounds: int) -> str:
    problem = rejection_problem(base) if base.rejected else untrusted(base) or import_problem(base.stack, base.records)
    problem = problem or incomplete(base) or other_device(evidence, base)
    if problem:
        return problem
    sides = (*evidence.records.values(), *base.records.values())
    stated = any(TURN[0] in record.untimed for record in sides)
    shared = len(paired_times(evidence)[0])
    return "" if stated or shared >= rounds else f"they share {shared} of {rounds} turns, and no rank states why"
