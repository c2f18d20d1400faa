"""Records required of every part of the model: parameters, layer outputs, routers and prediction heads."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence

from harness.core.cell.canary_legs import Leg
from harness.core.cell.layout import Coordinates
from harness.core.cell.model import MoeConfig
from harness.core.cell.modelled import follows_choices
from harness.core.peft import is_adapter
from harness.core.run.records import ExpertShare, LegSeen, RankRecord
from harness.core.run.tensor_records import ActivationSeen, ParameterSeen, StoredParameter
from harness.judge.diagnosis.boundaries import layer_of
from harness.judge.required.expected import Expected

_EXPERT = re.compile(r"\.experts\.\d+\.")
_ROUNDING = 1e-3  # relative, of a sum of softmax scores in fp32 over thousands of tokens


def problems(expected: Expected, record: RankRecord) -> Iterator[str]:
    """Problems of one completed rank."""
    at, fingerprints = record.place, expected.config.fingerprints and bool(expected.evidence.steps)
    outputs = expected.outputs(at.pp) if fingerprints and expected.records_outputs(at) else []
    yield from _layers(record.activations, outputs)
    yield from _same_documents(record.activations, record.activations)
    for number, evaluation in enumerate(record.evaluations):
        shown = evaluation.activations
        found = (*_layers(shown, outputs), *_same_documents(shown, shown))
        yield from (f"evaluation {number}: {problem}" for problem in found)
    yield from _parameters(expected, at, "parameters", record.parameters, fingerprints)
    # A trainer that never calls its optimizer has no gradients that a norm counts.
    updated = expected.config.own_trainer or any(one.update and one.update.change.norm_sq for one in record.parameters)
    for one in record.parameters:
        if one.update is None:
            yield f"parameters: {one.name} has no update"
        elif one.update.trained is None or one.update.stale is None:
            yield f"parameters: {one.name} has no change over all steps"
        if one.in_norm is None and updated:
            yield f"parameters: {one.name} has no in_norm"
    yield from _optimizer(expected, record, fingerprints, updated)
    for seen, leg in zip(record.legs, expected.legs):
        yield from (f"legs: {leg.name}: {problem}" for problem in _leg(expected, record, seen, leg))
    yield from _scales(expected, record)
    yield from _routers(expected, record)
    yield from _biases(expected, record)
    yield from _choices(expected, record)
    yield from _heads(expected, record)


def _optimizer(expected: Expected, record: RankRecord, wanted: bool, updated: bool) -> Iterator[str]:
    seen = record.optimizer
    if (seen is not None) != wanted:
        yield f"optimizer is {'missing' if wanted else 'recorded, though none was expected'}"
    if seen is not None:
        missing = [name for name in ("gradients", "weights", "matrix_decays") if not getattr(seen, name)]
        missing += ["moments"] if updated and not seen.moments else []
        missing += ["vector_decays"] if expected.model.peft is None and not seen.vector_decays else []
        yield from (f"optimizer: {name} is empty" for name in missing)


def _leg(expected: Expected, record: RankRecord, seen: LegSeen, leg: Leg) -> Iterator[str]:
    at = record.place
    records = leg.backward and expected.records_outputs(at)
    yield from _layers(seen.activations, expected.outputs(at.pp) if records else [])
    yield from _same_documents(seen.activations, record.activations or seen.activations)
    yield from _parameters(expected, at, "parameters", seen.parameters, leg.backward)
    yield from (f"parameters: {one.name} has an update in a leg" for one in seen.parameters if one.update)
    yield from (f"parameters: {one.name} has in_norm in a leg" for one in seen.parameters if one.in_norm is not None)
    if leg.backward and expected.config.fingerprints and _names(seen.parameters) != _names(record.parameters):
        yield "parameters: not those of step 0"


def _layers(seen: Sequence[ActivationSeen], right: Sequence[int]) -> Iterator[str]:
    found = [item.layer for item in seen]
    if found != list(right):
        yield f"activations: recorded for layers {found}, expected for {list(right)}"


def _same_documents(seen: Sequence[ActivationSeen], right: Sequence[ActivationSeen]) -> Iterator[str]:
    """Every layer of a rank sees the same documents, and a leg with a backward those of step 0."""
    for item in seen:
        if item.documents.keys() != right[0].documents.keys():
            found, held = sorted(item.documents), sorted(right[0].documents)
            yield f"activations: layer {item.layer} has documents {found}, layer {right[0].layer} of the rank {held}"


def _names(parameters: Sequence[ParameterSeen]) -> list[tuple[str, bool]]:
    return [(item.name, item.sharded) for item in parameters]


def _parameters(
    expected: Expected, at: Coordinates, name: str, seen: Sequence[ParameterSeen], wanted: bool
) -> Iterator[str]:
    if bool(seen) != wanted:
        yield f"{name}: {len(seen)} recorded, {'some' if wanted else 'none'} expected"
        return
    if seen:
        yield from (f"{name}: {problem}" for problem in parameters_problems(expected, at, seen))
    if expected.layout.world_size > 1:
        yield from (f"{name}: {one.name} has parts, which only a single rank records" for one in seen if one.parts)


def parameters_problems(
    expected: Expected, at: Coordinates, seen: Sequence[ParameterSeen] | Sequence[StoredParameter]
) -> Iterator[str]:
    """What is wrong with the names of the parameters that a rank recorded: with adapters, only these train."""
    twice = [item for item, count in Counter(one.name for one in seen).items() if count > 1]
    if twice:
        yield f"{twice[0]} is listed twice"
    if expected.model.peft is None:
        yield from whole_model_problems(expected, at, [item.name for item in seen])
    for item in seen:
        shard = expected.layout.expert_shard(at) if _EXPERT.search(item.name) else None
        if item.sharded and (expected.layout.tp if shard is None else expected.layout.expert_tp) == 1:
            yield f"{item.name} is sharded over tp, but tp is 1"
        if isinstance(item, ParameterSeen) and item.shard != shard:
            yield f"{item.name} is recorded as shard {item.shard}, not {shard}"


def whole_model_problems(expected: Expected, at: Coordinates, names: Sequence[str]) -> Iterator[str]:
    """What a stage lacks, or has beyond its layers."""
    held = {layer for name in names if (layer := layer_of(name))}
    right = set(expected.layers(at.pp))
    if held != right:
        yield f"recorded for layers {sorted(held)}, stage {at.pp} has {sorted(right)}"
    if at.pp == 0 and not any(name.startswith("embedding.") for name in names):
        yield "the first stage has no embedding"
    if expected.is_last(at) and not any(name.startswith(("output_layer.", "embedding.")) for name in names):
        yield "the last stage has no output layer"


def disagreements(expected: Expected, records: dict[int, RankRecord]) -> Iterator[str]:
    """Every rank of a stage holds the same parameters, and all ranks together those of the reference."""
    first: dict[int, tuple[int, list[tuple[str, bool]]]] = {}
    for rank in sorted(records):
        record = records[rank]
        names = [item for item in _names(record.parameters) if not _EXPERT.search(item[0])]
        other, right = first.setdefault(record.place.pp, (rank, names))
        if names != right:
            odd = sorted({*names} ^ {*right}) or names
            yield f"record of rank {rank}: parameters: {odd[0][0]} differs from rank {other} of its stage"
    yield from _against_reference(expected, records)


def _against_reference(expected: Expected, records: dict[int, RankRecord]) -> Iterator[str]:
    reference = expected.evidence.reference
    if reference is None or not (expected.config.fingerprints and reference.cell.config.fingerprints):
        return
    held = {item.name for record in records.values() for item in record.parameters}
    right = {item.name for record in reference.records.values() for item in record.parameters}
    if expected.model.tied:  # later stages hold a copy of the embedding under the output layer's name
        held = {name for name in held if not name.startswith("output_layer.")}
        right = {name for name in right if not name.startswith("output_layer.")}
    if expected.model.peft:  # the check frozen_weights reports others that train
        held, right = ({name for name in names if is_adapter(name)} for names in (held, right))
    if held != right:
        name = min(held ^ right)
        origin = expected.evidence.origin
        side = "no rank holds" if name in right else f"the {origin} does not hold"
        yield f"parameters: {side} {name}; the cell has {len(held)}, the {origin} {len(right)}"


def _scales(expected: Expected, record: RankRecord) -> Iterator[str]:
    found = [seen.chunk for seen in record.gradient_scales]
    right = [*range(expected.layout.vpp)] if expected.has_first_step else []
    if found != right:
        yield f"gradient_scales: of chunks {found}, not {right}"
    if not found or not record.parameters:
        return
    trained = {".experts." in item.name for item in record.parameters}  # adapters have no number
    for kind, experts in (("dense", False), ("experts", True)):
        held = any(getattr(seen, kind) is not None for seen in record.gradient_scales)
        if held != (experts in trained):
            yield f"gradient_scales: {kind} is {'present, without' if held else 'missing, with'} such parameters"


def _routers(expected: Expected, record: RankRecord) -> Iterator[str]:
    at, moe = record.place, expected.model.moe
    micro_batches = range(len(expected.evidence.plan[0][at.dp]))
    layers = expected.routed(at.pp) if expected.has_first_step else []
    right = [(layer, number) for layer in layers for number in micro_batches]
    found = sorted((seen.layer, seen.micro_batch) for seen in record.routers)
    if found != sorted(right):
        odd = sorted({*found} ^ {*right})
        yield f"routers: {len(found)} (layer, micro-batch) pairs, not {len(right)}; {odd[:1] or 'one is listed twice'}"
    first = expected.has_first_step
    balanced = moe is not None and moe.balanced and first
    z_loss = moe is not None and moe.z_loss_coeff > 0 and first
    weighed = expected.model.router_losses and first
    if (record.aux_scale is not None) != weighed:
        yield f"aux_scale is {record.aux_scale!r}, {'with' if weighed else 'without'} an auxiliary loss"
    for seen in record.routers:
        where = f"routers: layer {seen.layer}, micro-batch {seen.micro_batch}"
        if (seen.aux_loss is not None) != balanced or (seen.aux_weighted is not None) != balanced:
            yield f"{where}: aux_loss is {seen.aux_loss!r}, aux_weighted {seen.aux_weighted!r}"
        if (seen.z_loss is not None) != z_loss or (seen.z_weighted is not None) != z_loss:
            yield f"{where}: z_loss is {seen.z_loss!r}, z_weighted {seen.z_weighted!r}"
        limited = moe is not None and moe.capacity_factor is not None
        if (seen.kept is not None) != limited:
            yield f"{where}: kept is {seen.kept!r}"
        for share in (*seen.real, *seen.padding):
            if (share.squares is not None) != z_loss:
                yield f"{where}: squares are {share.squares!r}"
            if moe is not None and not _adds_up(share, moe.topk):
                choices, scores = sum(share.counts), sum(share.scores)
                yield f"{where}: {share.tokens} tokens, {choices} choices, scores that add up to {scores!r}"


def _biases(expected: Expected, record: RankRecord) -> Iterator[str]:
    moe = expected.model.moe
    layers = expected.routed(record.place.pp) if moe is not None and moe.expert_bias else []
    right = [(step, layer) for step in expected.evidence.steps for layer in layers]
    found = sorted((seen.step, seen.layer) for seen in record.expert_biases)
    if found != sorted(right):
        yield f"expert_biases: {len(found)} (step, layer) pairs, not {len(right)}"
    for seen in record.expert_biases:
        if moe is None or len(seen.values) != moe.experts:
            yield f"expert_biases: layer {seen.layer} has {len(seen.values)}"


def _choices(expected: Expected, record: RankRecord) -> Iterator[str]:
    """The oracle follows routers: what is missing it would choose itself."""
    evidence, config, moe = expected.evidence, expected.config, expected.model.moe
    right: list[tuple[int, int, int]] = []
    if moe is not None and follows_choices(config):
        evaluated = [config.train.steps + number for number in config.evaluations]
        right = [
            (step, layer, number)
            for step in (*evidence.steps, *evaluated)
            for layer in expected.routed(record.place.pp)
            for number in range(len(config.micro_batches(step)[record.place.dp]))
        ]
    found = sorted((seen.step, seen.layer, seen.micro_batch) for seen in record.choices)
    if found != sorted(right):
        yield f"choices: {len(found)} (step, layer, micro-batch) triples, not {len(right)}"
    for seen in record.choices:
        where = f"choices: step {seen.step}, layer {seen.layer}, micro-batch {seen.micro_batch}"
        if moe is None or not all(_is_choice(slot, moe) for slot in (*seen.experts, *(seen.preferred or ()))):
            yield f"{where}: not {moe.topk if moe else 0} experts of every slot"
        balanced = moe is not None and moe.balanced
        if seen.preferred is not None and not (balanced and len(seen.preferred) == len(seen.experts)):
            yield f"{where}: preferred is of other slots"
        limited = moe is not None and moe.capacity_factor is not None
        if (seen.taken is not None) != limited or (limited and len(seen.taken or ()) != len(seen.experts)):
            yield f"{where}: taken is {'of other slots' if limited else 'recorded without a capacity'}"
        if moe is not None and any(not {*slot} <= {*range(moe.experts)} for slot in seen.taken or ()):
            yield f"{where}: an expert takes slots that there is none of"


def _is_choice(experts: Sequence[int], moe: MoeConfig) -> bool:
    return len(set(experts)) == len(experts) == moe.topk and all(0 <= one < moe.experts for one in experts)


def _adds_up(share: ExpertShare, topk: int) -> bool:
    """Whether every token goes to `topk` experts, and its scores add up to 1."""
    possible = share.tokens >= 0 and min(share.counts) >= 0 and min(share.scores) >= 0
    scores = abs(sum(share.scores) - share.tokens) <= _ROUNDING * max(share.tokens, 1)
    return possible and sum(share.counts) == topk * share.tokens and scores


def _heads(expected: Expected, record: RankRecord) -> Iterator[str]:
    mtp = expected.model.mtp
    predicts = expected.is_last(record.place) and expected.has_first_step
    depths = range(1, mtp.layers + 1) if mtp and predicts else ()
    micro_batches = range(len(expected.evidence.plan[0][record.place.dp]))
    right = sorted((depth, number) for depth in depths for number in micro_batches)
    found = sorted((seen.depth, seen.micro_batch) for seen in record.mtp)
    if found != right:
        yield f"mtp: (depth, micro-batch) {found}, not {right}"
