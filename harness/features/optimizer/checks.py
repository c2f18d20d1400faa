"""The optimizer: its settings, its first update, and the weights after all steps."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from harness.core.cell.schedule import Schedule, same_rate
from harness.core.outcomes import Lane
from harness.core.run.records import RankRecord
from harness.core.run.tensor_records import Fingerprint, UpdateSeen
from harness.core.tolerances import ACCEPTS_NONE, Bound
from harness.judge.checks import gradients
from harness.judge.checks.finding import CheckFinding, check
from harness.judge.diagnosis import fault_classes
from harness.judge.evidence.assemble import copies
from harness.judge.evidence.cell_evidence import CellEvidence
from harness.judge.locations import numbered, where_of
from harness.judge.stats.distance import beyond, bound_text, exactly, fingerprint_distance, finite, stated
from harness.judge.stats.noise import least_norms


class Kind(NamedTuple):
    """A tensor of the optimizer, of every parameter."""

    field: str  # of UpdateSeen
    text: str
    bound: Bound
    right: str = "gradient"  # what is right where this is wrong
    step: int = 0
    noise: bool = False  # whether it can be compared where the gradient is nothing but rounding noise


class Wrong(NamedTuple):
    """A parameter whose update is off, from a copy or from the reference."""

    name: str
    off: float
    bound: Bound
    record: RankRecord | None = None  # the rank that differs from a copy; None: the whole differs from the reference's
    copy: int = 0  # rank of that copy


class _Copy(NamedTuple):
    name: str
    update: UpdateSeen
    copy: UpdateSeen  # on rank `other`
    record: RankRecord
    other: int


def wrong_updates(evidence: CellEvidence, kind: Kind) -> list[Wrong]:
    """Return copies that differ from the first one, then whole tensors that differ from the reference's."""
    return [*_among_copies(evidence, kind), *_against_reference(evidence, kind)]


def _among_copies(evidence: CellEvidence, kind: Kind) -> Iterator[Wrong]:
    differing = [*_copies(evidence)]
    if not differing:
        return
    least = _least(evidence, kind, evidence.updates)
    for copy_pair in differing:
        if _compared(evidence, kind, copy_pair.name):
            off = _distance(copy_pair.update, copy_pair.copy, kind.field, kind.bound, least.get(copy_pair.name, 0.0))
            if off is not None:
                yield Wrong(copy_pair.name, off, kind.bound, copy_pair.record, copy_pair.other)


def _copies(evidence: CellEvidence) -> Iterator[_Copy]:
    """Yield copies of a parameter over dp, cp and, where it is not sharded, tp, that are not equal bit for bit."""
    for record, parameter, first_rank, copy in copies(evidence.records):
        if parameter.update is not None and copy.update is not None and parameter.update != copy.update:
            yield _Copy(parameter.name, parameter.update, copy.update, record, first_rank)


def _against_reference(evidence: CellEvidence, kind: Kind) -> Iterator[Wrong]:
    reference = evidence.reference
    if reference is None or not evidence.same_rows:
        return
    measured, expected = evidence.updates, reference.updates
    least = _least(evidence, kind, expected)
    for name, expected_update in expected.items():
        update = measured.get(name)
        if update is None or not _compared(evidence, kind, name):
            continue
        bound = evidence.weight_bound(kind.field, name, kind.bound)
        if bound is None:
            continue  # rounding decides
        if (off := _distance(update, expected_update, kind.field, bound, least.get(name, 0.0))) is not None:
            yield Wrong(name, off, bound)


def _compared(evidence: CellEvidence, kind: Kind, name: str) -> bool:
    # Adam divides by the size of the gradient, so rounding noise becomes a full update in a random direction.
    return kind.noise or name not in evidence.tolerances.noise_only


def _least(evidence: CellEvidence, kind: Kind, whole: dict[str, UpdateSeen]) -> dict[str, float]:
    fingerprints = (getattr(update, kind.field) for update in whole.values())
    return least_norms(evidence.tolerances, (fingerprint for fingerprint in fingerprints if fingerprint is not None))


def _distance(update: UpdateSeen, expected: UpdateSeen, field: str, bound: Bound, least: float) -> float | None:
    """Return the distance if it is beyond the bound; values that are not finite are left to `finiteness`.

    A rank that did not finish has no change over all steps.
    """
    measured_field: Fingerprint | None = getattr(update, field)
    expected_field: Fingerprint | None = getattr(expected, field)
    if measured_field is None or expected_field is None or not (finite(measured_field) and finite(expected_field)):
        return None
    off = fingerprint_distance(measured_field, expected_field, bound, least_norm=least)
    return off if beyond(off, bound) else None


def finding(evidence: CellEvidence, kind: Kind, wrong: list[Wrong]) -> CheckFinding:
    """Return the finding of the updates of one kind that are wrong."""
    first = wrong[0]
    names = list(dict.fromkeys(update.name for update in wrong))
    where = {"parameter": first.name, "step": kind.step, "parameters": names[:16]}
    against = f"the {evidence.origin}"
    if first.record is not None:
        where |= where_of(first.record.place, rank=first.record.rank)
        against = f"its copy on rank {first.copy}; here rank {first.record.rank} ({first.record.place})"
    return CheckFinding(
        fault_class=fault_classes.OPTIMIZER,
        message=f"{kind.text} of {first.name}, whose {kind.right} is right, is off by {first.off:.3g} > "
        f"{bound_text(first.bound)} from {against}; differing: {numbered('parameter', names)}",
        where=where,
        measured=first.off,
        bound=stated(first.bound),
    )


_FP32 = ["torch.float32"]


@check(Lane.NUMERICS)
def optimizer_state(evidence: CellEvidence) -> list[CheckFinding]:
    """Check that the optimizer works in fp32, by the schedule's rates and decays, and that the model has its weights.

    Exact. A norm that does not get its update, or gradients that are summed in bf16, change too little in a few steps.
    """
    for _, record in sorted(evidence.records.items()):
        if problem := _state(evidence, record) or _scheduled(evidence, record) or _stale(evidence, record):
            return [problem]
    return []


def _scheduled(evidence: CellEvidence, record: RankRecord) -> CheckFinding | None:
    """Return the first step whose learning rates or decays of the optimizer's groups are not the reference's."""
    reference = evidence.reference.records.values() if evidence.reference else ()
    reference_steps = {step.step: step for other in reference for step in other.steps}
    for step in record.steps:
        if step.step not in reference_steps or not (step.rates and step.decays):
            continue
        for text, values, expected in (
            ("learning rates", step.rates, reference_steps[step.step].rates),
            ("weight decays", step.decays, reference_steps[step.step].decays),
        ):
            if len(values) != len(expected) or not all(map(same_rate, values, expected)):
                message = (
                    f"in step {step.step} the optimizer's groups of parameters have {text} {_named(values)}, "
                    f"{evidence.origin} {_named(expected)}"
                )
                return _finding(record, message, {"step": step.step}, values, expected, "the schedule of the cell")
    return None


def _state(evidence: CellEvidence, record: RankRecord) -> CheckFinding | None:
    config, optimizer = evidence.cell.config, record.optimizer
    if optimizer is None:
        return None
    rows: tuple[tuple[str, Sequence[str | float], Sequence[str | float]], ...] = (
        ("gradients are accumulated in", optimizer.gradients, _FP32),
        ("the optimizer's copies of weights are", optimizer.weights, _FP32),
        ("Adam's moments are", optimizer.moments, _FP32),
        ("matrices decay by", optimizer.matrix_decays, [Schedule.of(config).weight_decay(0)]),
        ("biases and norms decay by", optimizer.vector_decays, [0.0]),
    )
    for text, values, expected in rows:
        if values != expected and values:  # what is missing is not complete: judge/complete.py
            message = f"{text} {_named(values)}, not {_named(expected)}"
            return _finding(record, message, {"step": 0}, _named(values), _named(expected), "the cell's configuration")
    return None


def _stale(evidence: CellEvidence, record: RankRecord) -> CheckFinding | None:
    stale = {
        parameter.name: parameter.update.stale
        for parameter in record.parameters
        if parameter.update and parameter.update.stale
    }
    if not stale:
        return None
    name, count = next(iter(stale.items()))
    message = (
        f"the model of rank {record.rank} does not have the optimizer's weights after the last step: {count} elements "
        f"of {name} differ; affected: {numbered('parameter', list(stale))}"
    )
    where = {"parameter": name, "step": evidence.cell.config.train.steps - 1, "parameters": list(stale)[:16]}
    return _finding(record, message, where, count, 0, "the optimizer's weights, rounded")


def _named(values: Sequence[str | float]) -> str:
    return ", ".join(map(str, values)) or "nothing"


def _finding(
    record: RankRecord, message: str, where: dict[str, Any], measured: Any, expected: Any, origin: str
) -> CheckFinding:
    return CheckFinding(
        fault_class=fault_classes.OPTIMIZER,
        message=message,
        where=where_of(record.place, rank=record.rank) | where,
        measured=measured,
        bound=exactly(expected, origin),
    )


_SQUARE = "the square of a gradient is off by twice as much"
# In bf16 about one sign of a norm's 64 weights changes, and by chance it may be a few: of 24 clean cells with latent
# attention on two ranks, a sixth of the signs of one weight.
_FEW_SIGNS = 5
_MAX_SIGNS = 0.95  # an update that is left out is off by 1
_SIGNS = "Adam's first update is the sign of the gradient; an error of relative size e changes about a share e of signs"


@check(Lane.NUMERICS)
def first_update(evidence: CellEvidence) -> list[CheckFinding]:
    """Check what the first update makes of the gradients: Adam's moments and the change of every weight.

    With right gradients, it shows what lies between them and the weights: clipping, the optimizer's shards, decay.
    """
    if not evidence.fingerprinted:
        return []
    for kind in kinds(evidence):
        if wrong := wrong_updates(evidence, kind):
            # Asked only now: checks cost time, and most cells have right updates.
            if gradients.parameter_gradients(evidence) or gradients.replica_gradients(evidence):
                return []  # a consequence of wrong gradients
            return [finding(evidence, kind, wrong)]
    return []


def kinds(evidence: CellEvidence) -> list[Kind]:
    """Return what is compared: bounds follow from that of gradients, and must be able to tell an update from none."""
    bound = evidence.tolerances.parameter_gradient
    double = replace(bound, value=4 * bound.value, origin=f"{bound.origin}; {_SQUARE}")
    signs = replace(bound, value=sign_changes(evidence), origin=f"{bound.origin}; {_SIGNS}")
    first = Kind("first_moment", "first moment", bound, noise=True)
    if bound.unit == "absolute":  # a first moment is smaller than its gradient; the others have another scale
        return [first]
    others = (
        Kind("second_moment", "second moment", double),
        Kind("change", "change by the first update", signs),
    )
    return [first, *(kind for kind in others if kind.bound.value < ACCEPTS_NONE)]


def sign_changes(evidence: CellEvidence) -> float:
    """Return how far the signs of gradients, that is an update, may be off if gradients are within their bound."""
    share = evidence.tolerances.parameter_gradient.value
    # A turned sign moves a weight by twice the learning rate.
    off = 2 * math.sqrt(share)
    if evidence.cell.config.dtype == "fp32" or off >= ACCEPTS_NONE:
        return off
    return min(2 * math.sqrt(_FEW_SIGNS * share), _MAX_SIGNS)


# Adam's first update is the sign of the gradient. An error of relative size e in the gradient changes about a share e
# of the signs, so the update is off by 2 sqrt(e). Errors of n updates, relative to their sum, grow by sqrt(n) at most.
_FEW_SIGNS_OF_STEPS = 3  # of one update in bf16
_ORIGIN = "2 sqrt({steps:g} x {gradient:g}), the bound of gradients: Adam's updates are about their signs"


def bound_of(evidence: CellEvidence) -> Bound:
    """Return the bound of the change over all steps; bf16 changes signs in one update that are right in most others."""
    gradient, steps = evidence.tolerances.parameter_gradient, evidence.cell.config.train.steps
    several = steps if evidence.cell.config.dtype == "fp32" else max(1.0, _FEW_SIGNS_OF_STEPS / steps)
    origin = _ORIGIN.format(steps=several, gradient=gradient.value)
    value = sign_changes(evidence) if steps == 1 else 2 * math.sqrt(several * gradient.value)
    return replace(gradient, value=value, origin=origin)


@check(Lane.NUMERICS)
def trained_weights(evidence: CellEvidence) -> list[CheckFinding]:
    """Check that the change of every weight over all steps equals the control's, and that copies have the same.

    With a right first update, it shows what goes wrong in a later one: an update that a rank skips, a schedule, stale
    shards.
    """
    bound, steps = bound_of(evidence), evidence.cell.config.train.steps
    if not evidence.fingerprinted or bound.unit == "absolute" or bound.value >= ACCEPTS_NONE:
        return []
    kind = Kind("trained", f"change over {steps} steps", bound, right="first update", step=steps - 1)
    wrong = wrong_updates(evidence, kind)
    earlier = (gradients.parameter_gradients, gradients.replica_gradients, first_update)
    if not wrong or any(before(evidence) for before in earlier):
        return []
    return [finding(evidence, kind, wrong)]
