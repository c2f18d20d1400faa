"""Packed params: they reach every layer of every rank, with the plan's values, in the form that kernels need."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Literal, NamedTuple

from harness.core.outcomes import Lane, Severity
from harness.core.packing.fields import LONGEST, OFFSETS, PADDED
from harness.core.run.records import LayerSeen, RankRecord, SeenParams
from harness.core.text import counted
from harness.features.hybrid.pattern import RECURRENT
from harness.judge.checks.finding import CheckFinding, check
from harness.judge.diagnosis import fault_classes
from harness.judge.evidence.cell_evidence import CellEvidence
from harness.judge.evidence.endings import TRAINED, Ending
from harness.judge.evidence.params_differences import (
    FieldProblem,
    copied_padding,
    form_problems,
    ghosts,
    missing_class,
    pairing,
    problems_of,
    structure,
)
from harness.judge.evidence.truth import ParamsSeen, Truth, attention_layers
from harness.judge.locations import RankLocation, extent, fold, listed, unequal

# rank, leg, step, micro-batch, chunk, layer
_Key = tuple[int, Literal["metadata", "training"], int, int, int, int | None]


@check(Lane.METADATA)
def params_present(evidence: CellEvidence) -> list[CheckFinding]:
    """Check that packed params reach every layer, chunk and stage of a packed cell, in both legs, each micro-batch."""
    if not evidence.packed:
        return []
    present: set[_Key] = set()
    missing: dict[_Key, None] = {}
    for place, params, _ in evidence.observations:
        if params is None:
            missing[_place_key(place)] = None
        else:
            present.add(_place_key(place))
    for ending in evidence.endings:
        missing |= dict.fromkeys(key for key in _expected(evidence, ending) if key not in present)
    if not missing:
        return []
    places = [RankLocation(key[0], evidence.layout.coordinates(key[0]), *key[1:]) for key in missing]
    first, where = fold(places)
    return [
        CheckFinding(
            fault_class=missing_class(evidence, places),
            message=f"no packed params at {first}{extent(where)}",
            where=where,
            measured=None,
            bound="packed params",
        )
    ]


def _place_key(place: RankLocation) -> _Key:
    """Return a location without its coordinates, which follow from the rank."""
    return place.rank, place.leg, place.step, place.micro_batch, place.chunk, place.layer


def _expected(evidence: CellEvidence, ending: Ending) -> Iterator[_Key]:
    """Yield the locations that a rank must have recorded, given how far it came."""
    layout, at, rank = evidence.layout, ending.place, ending.rank
    # A rank without a record is the finding of `completeness`; its params are not missing, they are unknown.
    if rank not in evidence.records:
        return
    completed = ending.ended == "completed"
    # Upstream's own trainer fetches batches while it trains.
    if completed or (evidence.cell.config.trained_by_harness and ending.progress.leg in (*TRAINED, "end")):
        for step in evidence.fetched_steps:
            for micro_batch in range(len(evidence.plan[step][at.dp])):
                for chunk in range(layout.vpp):
                    yield rank, "metadata", step, micro_batch, chunk, None
    if not completed:
        return
    ran = {recorded.step: recorded.micro_batches for recorded in evidence.records[rank].steps}
    layers = [attention_layers(evidence.cell.config, at.pp, chunk) for chunk in range(layout.vpp)]
    for step in evidence.steps:
        # `micro_batch_count` covers micro-batches that were not run.
        for micro_batch in range(min(len(evidence.plan[step][at.dp]), ran[step])):
            for chunk in range(layout.vpp):
                for layer in layers[chunk]:
                    yield rank, "training", step, micro_batch, chunk, layer


GROUPS = (OFFSETS, PADDED, LONGEST)  # one finding per group: q and kv go wrong together


class _WrongValue(NamedTuple):
    place: RankLocation
    problem: FieldProblem
    truth: Truth
    params: SeenParams


@check(Lane.METADATA)
def params_agree_plan(evidence: CellEvidence) -> list[CheckFinding]:
    """Check that all values of packed params equal the plan of the data path, on every rank, layer and micro-batch."""
    wrong: dict[tuple[str, ...], list[_WrongValue]] = {}
    for seen in evidence.params_seen:
        problems = problems_of(seen)
        for group in GROUPS:
            wrong_field = next((problem for problem in problems if problem.field in group), None)
            if wrong_field is not None:
                wrong.setdefault(group, []).extend(
                    _WrongValue(place, wrong_field, seen.truth, seen.params) for place in seen.places
                )
    return [_differing_finding(evidence, wrong[group]) for group in GROUPS if group in wrong]


def _differing_finding(evidence: CellEvidence, wrong: list[_WrongValue]) -> CheckFinding:
    places = [value.place for value in wrong]
    first, where = fold(places)
    first_wrong = next(value for value in wrong if value.place == first)
    problem = first_wrong.problem
    stale = _other_micro_batch(evidence, first, problem)
    notes = [f"these are the values of micro-batch {stale}"] if stale is not None else _notes(evidence, first_wrong)
    fault_class = (
        fault_classes.STALE if stale is not None else _fault_class(first_wrong, missing_class(evidence, places))
    )
    return CheckFinding(
        fault_class=fault_class,
        message=f"{unequal(problem.field, problem.measured, problem.expected)}, at {first}{extent(where)}"
        f"{''.join('; ' + note for note in notes)}",
        where={**where, "field": problem.field},
        measured=problem.measured,
        bound=problem.expected,
    )


def _other_micro_batch(evidence: CellEvidence, place: RankLocation, problem: FieldProblem) -> int | None:
    """Return the number of another micro-batch of the step whose plan has the measured offsets, or None.

    The ends of the right offsets alone are those of a row with its boundaries lost, whatever another row has.
    """
    if not isinstance(problem.measured, list) or _merged(problem):
        return None
    for number, truth in enumerate(evidence.plan[place.step][place.at.dp]):
        expected = getattr(truth.params, problem.field, None)
        if number != place.micro_batch and expected is not None and list(expected) == problem.measured:
            return number
    return None


def _notes(evidence: CellEvidence, wrong: _WrongValue) -> list[str]:
    """Return defects of the offsets themselves, and contradictions between real and padded ones."""
    problem, truth = wrong.problem, wrong.truth
    if not isinstance(problem.measured, list):
        return []
    if count := _ghosts(problem):
        return [f"{counted(count, 'empty segment')} that no document has"]
    if _merged(problem):
        return ["the boundaries between documents are lost, so that they are one"]
    style, notes = evidence.cell.config.style, []
    physical = problem.field in PADDED or (truth.params and truth.params.cu_seqlens_q_padded) is None
    if physical:
        notes += structure(problem.measured, length=truth.batch.slots, multiple=style.document_multiple)
    for kind in ("q", "kv"):
        real, padded = getattr(wrong.params, f"cu_seqlens_{kind}"), getattr(wrong.params, f"cu_seqlens_{kind}_padded")
        if problem.field.startswith(f"cu_seqlens_{kind}") and real is not None and padded is not None:
            notes += pairing(real, padded)
    return notes


def _merged(problem: FieldProblem) -> bool:
    """Return whether the measured offsets are the ends of the right ones."""
    expected = list(problem.expected or ()) if isinstance(problem.expected, list | tuple) else []
    return len(expected) > 2 and problem.measured == [expected[0], expected[-1]]


def _ghosts(problem: FieldProblem) -> int:
    both = isinstance(problem.measured, list) and isinstance(problem.expected, list)
    return ghosts(problem.measured, problem.expected) if both else 0


def _fault_class(wrong: _WrongValue, missing: str) -> str:
    """Return the fault class of a wrong value; `missing` is the one for absent offsets."""
    problem, params = wrong.problem, wrong.truth.params
    if _ghosts(problem):
        return fault_classes.GHOSTS
    if problem.field in OFFSETS and problem.measured is None:
        return missing
    if problem.field in LONGEST or params is None:
        return fault_classes.MAX_SEQLEN
    real, padded = params.cu_seqlens_q, params.cu_seqlens_q_padded
    if padded is None:
        return fault_classes.CU_SEQLENS
    # Each field then holds exactly the other's values.
    swapped = problem.measured == list(padded if problem.field in OFFSETS else real)
    return fault_classes.REAL_PADDED if swapped else fault_classes.CU_SEQLENS


_NAMES = {"max_seqlen_type": "type of max_seqlen", "context_ranks": "number of context ranks in the packed params"}


@check(Lane.METADATA)
def params_form(evidence: CellEvidence) -> list[CheckFinding]:
    """Check that packed params have the form that kernels expect, and that unpacked runs have none.

    Every cu_seqlens tensor is int32, 1-D and on the model's device; max_seqlen is a Python int, the format thd. A
    context-parallel group, or its size, is the layout's where one is given.
    """
    if not evidence.packed:
        return _unpacked(evidence)
    wrong: dict[str, list[tuple[RankLocation, FieldProblem]]] = {}
    for seen in evidence.params_seen:
        for problem in form_problems(seen.params, evidence.cell.config.style, seen.device, evidence.layout.cp):
            wrong.setdefault(problem.field, []).extend((place, problem) for place in seen.places)
    return [_form_finding(field, places) for field, places in wrong.items()]


def _form_finding(field: str, wrong: list[tuple[RankLocation, FieldProblem]]) -> CheckFinding:
    first, where = fold([place for place, _ in wrong])
    problem = next(problem for place, problem in wrong if place == first)
    name = f"{field} of {problem.tensor}" if problem.tensor else _NAMES.get(field, field)
    more = sorted({form_problem.tensor for place, form_problem in wrong if place == first} - {problem.tensor, ""})
    name += f" (and of {', '.join(more)})" if more else ""
    return CheckFinding(
        fault_class=fault_classes.FORM,
        message=f"{unequal(name, problem.measured, problem.expected)}, at {first}{extent(where)}",
        where={**where, "field": field, **({"tensor": problem.tensor} if problem.tensor else {})},
        measured=problem.measured,
        bound=problem.expected,
    )


def _unpacked(evidence: CellEvidence) -> list[CheckFinding]:
    places = [observation.place for observation in evidence.observations if observation.params is not None]
    if not places:
        return []
    first, where = fold(places)
    return [
        CheckFinding(
            fault_class=fault_classes.PARAMS_UNPACKED,
            message=f"packed params in an unpacked run at {first}{extent(where)}",
            where=where,
            measured="packed params",
            bound="none",
        )
    ]


@check(Lane.METADATA)
def params_agree_ranks(evidence: CellEvidence) -> list[CheckFinding]:
    """Check that the tp x pp x cp ranks of a replica hold the same packed params.

    `params_agree_plan` covers wrong values, and `params_present` absent params. What remains are fields that the plan
    allows in two forms (padded offsets given or not), which ranks must not mix, and formats.
    """
    groups: dict[int, list[ParamsSeen]] = {}
    for seen in evidence.params_seen:
        if not problems_of(seen) and not form_problems(
            seen.params, evidence.cell.config.style, seen.device, evidence.layout.cp
        ):
            # One truth object per replica and micro-batch, so its identity is the group.
            groups.setdefault(id(seen.truth), []).append(seen)
    differing: list[tuple[RankLocation, list[str]]] = []
    for members in groups.values():
        differing += _differing(members)
    if not differing:
        return []
    first, where = fold([place for place, _ in differing])
    fields = next(fields for place, fields in differing if place == first)
    return [
        CheckFinding(
            fault_class=fault_classes.RANKS_DIFFER,
            message=f"{listed(fields)} at {first} differs from the other ranks of the replica{extent(where)}",
            where={**where, "field": fields[0]},
            measured=fields,
            bound="equal on all tp x pp x cp ranks",
        )
    ]


def _differing(members: list[ParamsSeen]) -> list[tuple[RankLocation, list[str]]]:
    """Return locations whose params differ from the most frequent (in a tie, the first), and the fields that do."""
    forms: list[tuple[SeenParams, list[RankLocation]]] = []
    for seen in members:
        values = replace(seen.params, forms={})  # tensor identities differ by rank
        same = next((places for known_values, places in forms if known_values == values), None)
        if same is None:
            forms.append((values, list(seen.places)))
        else:
            same += seen.places
    usual = max(forms, key=lambda form: len(form[1]))[0]
    return [
        (place, [name for name in vars(values) if getattr(values, name) != getattr(usual, name)])
        for values, places in forms
        if values is not usual
        for place in places
    ]


@check(Lane.METADATA)
def params_identity(evidence: CellEvidence) -> list[CheckFinding]:
    """Check that padded offsets equal to the plain ones are the same tensors; copies cost Transformer Engine speed.

    A warning: the numbers are right, the kernel is slower. Transformer Engine compares padded with plain offsets by
    object for q and for kv (DotProductAttention.forward); it never compares those of q with those of kv.
    """
    places = [
        place
        for seen in evidence.params_seen
        if copied_padding(seen.params) and not problems_of(seen)
        for place in seen.places
    ]
    if not places:
        return []
    first, where = fold(places)
    return [
        CheckFinding(
            severity=Severity.WARNING,
            fault_class=fault_classes.NOT_THE_SAME,
            message="cu_seqlens_padded equals cu_seqlens but is another tensor, and pad_between_seqs is not set: "
            f"Transformer Engine takes a slower kernel, at {first}{extent(where)}",
            where={**where, "field": "cu_seqlens_q_padded"},
            measured="equal, another tensor",
            bound="the same tensor, or pad_between_seqs set",
        )
    ]


@check(Lane.METADATA)
def params_recomputed(evidence: CellEvidence) -> list[CheckFinding]:
    """Check that the recomputed forward gets the same packed params as the first forward (axis `recompute`).

    The loss comes from the first forward and the gradients from the second, so a difference here shows in gradients
    alone.
    """
    wrong = {place: fields for record in evidence.records.values() for place, fields in _differences(record)}
    if not wrong:
        return []
    first, where = fold(list(wrong))
    fields = wrong[first]
    return [
        CheckFinding(
            fault_class=fault_classes.RECOMPUTED,
            message=f"{listed(fields)} in the recomputed forward differs from the first forward, "
            f"at {first}{extent(where)}",
            where={**where, "field": fields[0]},
            measured=fields,
            bound="equal in both forwards",
        )
    ]


def _differences(record: RankRecord) -> list[tuple[RankLocation, list[str]]]:
    """Return locations where the two forwards differ, and the fields that do."""
    before = {_layer_key(seen): seen.params for seen in record.layers}
    return [
        (
            RankLocation(record.rank, record.place, "training", seen.step, seen.micro_batch, seen.chunk, seen.layer),
            _fields(record, before[_layer_key(seen)], seen.params),
        )
        for seen in record.recomputed
        # Indices into the table of distinct params, so that equal indices are equal values.
        if _layer_key(seen) in before and before[_layer_key(seen)] != seen.params
    ]


def _layer_key(seen: LayerSeen) -> tuple[int, int, int, int]:
    return (seen.step, seen.chunk, seen.micro_batch, seen.layer)


def _fields(record: RankRecord, before: int | None, recomputed: int | None) -> list[str]:
    if before is None or recomputed is None:
        return ["packed_seq_params"]
    first, second = vars(record.packed_params[before]), vars(record.packed_params[recomputed])
    return [name for name in first if first[name] != second[name]]


# Of megatron-core's AttnMaskType. With cu_seqlens, and with as many queries as keys, they mean the same.
CAUSAL = ("causal", "padding_causal", "causal_bottom_right")


@check(Lane.METADATA)
def attention_mask(evidence: CellEvidence) -> list[CheckFinding]:
    """Check that attention of every layer gets a causal mask type and no bias of the scores.

    The harness's own attention is always causal, so in a cell without a GPU only this check sees another mask type. The
    tensor `attention_mask` is not compared: with a causal type, kernels do not read it.
    """
    model = evidence.cell.config.model
    recurrent = frozenset(model.numbers_of(RECURRENT)) if model.hybrid else frozenset()
    wrong = {place: given for record in evidence.records.values() for place, given in _wrong(record, recurrent)}
    if not wrong:
        return []
    first, where = fold(list(wrong))
    return [
        CheckFinding(
            fault_class=fault_classes.MASK,
            message=f"attention gets {wrong[first]} at {first}{extent(where)}",
            where=where,
            measured=wrong[first],
            bound="a causal mask",
        )
    ]


def _wrong(record: RankRecord, recurrent: frozenset[int]) -> Iterator[tuple[RankLocation, str]]:
    for seen in (*record.layers, *record.recomputed):
        # Recurrent layers take no mask: they are causal by what they compute.
        allowed: tuple[str | None, ...] = (None,) if seen.layer in recurrent else CAUSAL
        if seen.mask in allowed and not seen.biased:
            continue
        place = RankLocation(record.rank, record.place, "training", seen.step, seen.micro_batch, seen.chunk, seen.layer)
        yield place, f"mask type {seen.mask}{', with a bias of the scores' if seen.biased else ''}"
