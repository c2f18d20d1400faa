"""Gradients: replicas agree, and they are those of the reference, with the right scale and norm."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from harness.core.outcomes import Lane
from harness.core.run.records import RankRecord
from harness.judge.checks.finding import CheckFinding, check
from harness.judge.diagnosis import fault_classes, localise
from harness.judge.diagnosis.localise import shards_off
from harness.judge.diagnosis.ratios import factors_of, ratio_name, scale_of, stated_ratio
from harness.judge.evidence.assemble import ParameterGradient, copies, shard_of
from harness.judge.evidence.cell_evidence import CellEvidence
from harness.judge.evidence.counted import returned_tokens
from harness.judge.locations import numbered, where_of
from harness.judge.stats.distance import beyond, bound_text, distance, exactly, fingerprint_distance, finite, stated
from harness.judge.stats.noise import least_norms


@check(Lane.NUMERICS)
def replica_gradients(evidence: CellEvidence) -> list[CheckFinding]:
    """Check that copies agree: over cp and dp after the reduction, over tp where the parameter is not sharded."""
    bound = evidence.own.parameter_gradient
    least = least_norms(evidence.own, (gradient.fingerprint for gradient in evidence.gradients.values()))
    wrong: list[tuple[str, RankRecord, int, float]] = []
    for record, parameter, first_rank, copy in copies(evidence.records):
        if parameter.gradient != copy.gradient and finite(copy.gradient) and finite(parameter.gradient):
            off = fingerprint_distance(
                parameter.gradient, copy.gradient, bound, least_norm=least.get(parameter.name, 0.0)
            )
            if beyond(off, bound):
                wrong.append((parameter.name, record, first_rank, off))
    if not wrong:
        return []
    name, record, first_rank, off = wrong[0]
    names = list(dict.fromkeys(name for name, *_ in wrong))
    ranks = sorted({record.rank for _, record, *_ in wrong})
    return [
        CheckFinding(
            fault_class=fault_classes.GRADIENT_REDUCTION,
            message=f"gradient of {name} on rank {record.rank} ({record.place}) differs from its copy on rank "
            f"{first_rank} by {off:.3g} > {bound_text(bound)}; "
            f"differing: {numbered('parameter', names)} on {numbered('rank', ranks)}",
            where=where_of(record.place, rank=record.rank, parameter=name, step=0) | {"ranks": ranks},
            measured=off,
            bound=stated(bound),
        )
    ]


@check(Lane.NUMERICS)
def parameter_gradients(evidence: CellEvidence) -> list[CheckFinding]:
    """Check that every gradient (step 0, reduced, before clipping) equals the reference's, by fingerprint."""
    if evidence.reference is None or not evidence.fingerprinted or not evidence.same_rows:
        return []
    measured, expected = evidence.gradients, evidence.reference.gradients
    bound = evidence.tolerances.parameter_gradient
    least = least_norms(evidence.tolerances, (gradient.fingerprint for gradient in expected.values()))
    off: dict[str, float] = {}
    for name, reference_gradient in expected.items():  # in model order, as its one rank lists them
        gradient = measured.get(name)
        if gradient is None:
            # A weight without a gradient is as far off as can be, and no fingerprint says how far.
            off[name] = math.inf
        elif finite(gradient.fingerprint):
            norm = least.get(name, 0.0)
            off[name] = fingerprint_distance(
                gradient.fingerprint, reference_gradient.fingerprint, bound, least_norm=norm
            )
    wrong = [name for name, value in off.items() if beyond(value, bound)]
    # Tied embeddings: stages other than the first hold a copy under the output layer's name.
    tied = evidence.cell.config.model.tied
    extra = [name for name in measured if name not in expected and not (tied and name.startswith("output_layer."))]
    if not wrong and not extra and expected:
        return []
    if not wrong:
        return [_unmatched(evidence, extra)]
    return [_finding(evidence, evidence.reference, wrong, off)]


def _finding(evidence: CellEvidence, control: CellEvidence, wrong: list[str], off: dict[str, float]) -> CheckFinding:
    measured, expected, bound = evidence.gradients, control.gradients, evidence.tolerances.parameter_gradient
    name, of = wrong[0], len(expected)
    ratio = _common_ratio(evidence, wrong, measured, expected)
    shards = shards_off(measured[name], expected[name], bound) if name in measured else None
    edges = localise.of_parameter(evidence.layout, evidence.cell.config.model.spread, name, shards)
    edges = localise.NOTHING if ratio else edges  # a factor common to all does not point to one place
    where = _where(measured, name) | {"parameter": name, "step": 0, "parameters": wrong[:16]}
    value = "missing" if math.isinf(off[name]) else f"off by {off[name]:.3g} > {bound_text(bound)}"
    named = f"; the ratio is {ratio} on all that differ" if ratio else ""
    # Backward reaches the last parameter first: if all before it differ and none after it, the fault is there.
    if not ratio and 1 < len(wrong) < of and wrong == list(expected)[: len(wrong)]:
        named, edges = f"; backward meets {wrong[-1]} first", localise.NOTHING
    return CheckFinding(
        fault_class=f"{fault_classes.NORMALISATION}: {ratio}" if ratio else fault_classes.GRADIENT_REDUCTION,
        message=f"gradient of {name}: {value}{named}; {len(wrong)} of {of} parameters differ{edges.text}",
        where=where | ({"ratio": ratio} if ratio else {}) | edges.keys,
        measured=off[name],
        bound=stated(bound),
    )


def _unmatched(evidence: CellEvidence, extra: list[str]) -> CheckFinding:
    message = (
        f"gradient of {extra[0]}, which the {evidence.origin} does not have"
        if extra
        else "no gradients to compare with"
    )
    return CheckFinding(
        fault_class=fault_classes.UNKNOWN,
        message=message,
        where={"parameter": extra[0], "step": 0} if extra else {"step": 0},
        measured=len(extra),
        bound=exactly(f"the parameters of the {evidence.origin}", "the same model"),
    )


def _where(measured: Mapping[str, ParameterGradient], name: str) -> dict[str, int]:
    where = {"stage": measured[name].stage} if name in measured else {}
    layer = localise.layer_of(name)
    return where | ({"layer": layer} if layer else {})


def _common_ratio(
    evidence: CellEvidence,
    wrong: list[str],
    measured: Mapping[str, ParameterGradient],
    expected: Mapping[str, ParameterGradient],
) -> str | None:
    """Return the layout factor by which all differing gradients are off, if they share one and point the right way."""
    if any(name not in measured for name in wrong):
        return None
    tolerances = evidence.tolerances
    pairs = [(measured[name].fingerprint, expected[name].fingerprint) for name in wrong]
    # Gradients of one factor agree on it only as well as gradients agree at all.
    screen = max(tolerances.ratio_screen, tolerances.parameter_gradient.value)
    scale = scale_of(pairs, screen)
    return None if scale is None else ratio_name(scale, factors_of(evidence, 0), tolerances.ratio_screen)


_ROUNDING = 2.0**-8  # of gradients in bf16


@check(Lane.NUMERICS)
def gradient_scale(evidence: CellEvidence) -> list[CheckFinding]:
    """Check that gradients, also of experts, are divided by the number of tokens that the loss returned (step 0).

    Without a loss per token they are averaged over replicas and context ranks. Nothing is compared with the control,
    which runs the same code.
    """
    if not evidence.first_step_whole:
        return []
    expected, why = _asked(evidence)
    for rank in sorted(evidence.records):
        record = evidence.records[rank]
        for scale in record.gradient_scales:
            for kind, factor in (("gradients", scale.dense), ("gradients of experts", scale.experts)):
                # In bf16 the measured factor is a ratio of two rounded norms.
                if factor is None or not math.isfinite(factor) or abs(factor / expected - 1) <= _ROUNDING:
                    continue
                name = ratio_name(factor / expected, factors_of(evidence, 0), evidence.tolerances.ratio_screen)
                where = where_of(record.place, rank=rank, step=0, chunk=scale.chunk)
                return [
                    CheckFinding(
                        fault_class=f"{fault_classes.NORMALISATION}: {name}"
                        if name
                        else fault_classes.GRADIENT_REDUCTION,
                        message=f"{kind} on rank {rank} ({record.place}) are multiplied by {factor:.6g}, expected "
                        f"{expected:.6g}, {why}; {stated_ratio(name or factor / expected).rstrip(';')}",
                        where=where | ({"ratio": name} if name else {}),
                        measured=factor,
                        bound=exactly(expected, why),
                    )
                ]
    return []


def _asked(evidence: CellEvidence) -> tuple[float, str]:
    """Return the factor that the loss asks for, and why."""
    layout, config = evidence.layout, evidence.cell.config
    # SkyRL's trainer scales the loss mask instead.
    if config.trainer == "skyrl" or not config.options.calculate_per_token_loss:
        return 1.0 / (layout.dp * layout.cp), "the mean over replicas and context ranks"
    returned = returned_tokens(evidence, 0)[0]
    if not returned:
        return 1.0, "since the loss returns no number of tokens"
    return 1.0 / returned, f"one over the {returned:g} tokens that the loss returned"


class _Held(NamedTuple):
    """A parameter, or its shard, on one rank."""

    record: RankRecord
    shard: int  # -1: all of it
    of_expert: bool  # split otherwise than other weights: over replicas too
    counted: bool


class _Wrong(NamedTuple):
    name: str
    what: str
    record: RankRecord
    times: int


@check(Lane.NUMERICS)
def norm_members(evidence: CellEvidence) -> list[CheckFinding]:
    """Check that upstream's gradient norm, by which it clips, counts every shard once, and one of all copies.

    Which gradients the norm counts is exact. A parameter that is left out may be too small to change the norm visibly.
    """
    if not evidence.first_step_whole:  # a copy on a rank that is missing may be the one that is counted
        return []
    wrong = [miscount for name, held in _by_name(evidence).items() for miscount in _of(name, held)]
    if not wrong:
        return []
    first = wrong[0]
    names = list(dict.fromkeys(miscount.name for miscount in wrong))
    ranks = sorted({miscount.record.rank for miscount in wrong})
    place = first.record.place
    return [
        CheckFinding(
            fault_class=fault_classes.GRADIENT_NORM,
            message=f"upstream's gradient norm {first.what}; counted wrongly: {numbered('parameter', names)}",
            where=where_of(place, rank=first.record.rank, parameter=first.name, step=0) | {"ranks": ranks},
            measured=float(first.times),
            bound=exactly("once", "every shard, and one of all copies over tp and stages"),
        )
    ]


def _by_name(evidence: CellEvidence) -> dict[str, list[_Held]]:
    """Return parameter -> the ranks that hold it and know whether the norm counts it, in the order of ranks."""
    holders: dict[str, list[_Held]] = {}
    for rank in sorted(evidence.records):
        record = evidence.records[rank]
        for parameter in record.parameters:
            if parameter.in_norm is not None:
                held = _Held(record, shard_of(record.place, parameter), parameter.shard is not None, parameter.in_norm)
                holders.setdefault(parameter.name, []).append(held)
    return holders


def _of(name: str, held: list[_Held]) -> Iterator[_Wrong]:
    """Yield parts that the norm counts not exactly once.

    Replicas, context ranks included, must agree: the norm is summed over the ranks of a model only.
    """
    places: dict[tuple[int, int], _Held] = {}
    for holder in held:
        at = (holder.record.place.pp, holder.shard if holder.of_expert else holder.record.place.tp)
        first = places.setdefault(at, holder)
        if first.counted != holder.counted:
            yes, no = (first, holder) if first.counted else (holder, first)
            what = f"counts {name} on rank {yes.record.rank} and not on its copy of another replica, {no.record.rank}"
            yield _Wrong(name, what, no.record, 0)
            return
    parts: dict[str, list[_Held]] = {}
    for (_, tp), holder in places.items():
        kind = "expert tp" if holder.of_expert else "tp"
        parts.setdefault(f"the shard of {name} on {kind} rank {tp}" if holder.shard >= 0 else name, []).append(holder)
    for part, held in parts.items():
        counted = [holder for holder in held if holder.counted]
        if not counted:
            yield _Wrong(name, f"leaves out {part}", held[0].record, 0)
        elif len(counted) > 1:
            ranks = numbered("rank", [holder.record.rank for holder in counted])
            yield _Wrong(name, f"counts {part} {len(counted)} times, on {ranks}", counted[1].record, len(counted))


@check(Lane.NUMERICS)
def grad_norm(evidence: CellEvidence) -> list[CheckFinding]:
    """Check that the gradient norm before clipping equals the reference's on every rank; name a recognised ratio.

    A control with other rows in its micro-batches has other gradients. Then the ranks are compared with each other:
    each holds the norm over all ranks.
    """
    if evidence.reference is None:
        return []
    if evidence.same_rows:
        return _against(evidence, evidence.reference, evidence.origin)
    return _against(evidence, evidence, "the first rank's")


def _against(evidence: CellEvidence, other: CellEvidence, origin: str) -> list[CheckFinding]:
    wrong = []
    norms = grad_norms(other)
    for step, expected in ((step, norms[step]) for step in evidence.steps if step in norms):
        # Against itself a cell has no noise of a control, only its own rounding.
        bound = evidence.own_bound("grad_norm", step) if other is evidence else evidence.bound("grad_norm", step)
        if bound is None:
            break  # rounding decides
        any_recorded = False
        for record, recorded in evidence.step_records(step):
            norm = recorded.grad_norm
            any_recorded |= norm is not None
            if norm is not None and math.isfinite(norm) and beyond(distance(norm, expected, bound), bound):
                wrong.append((step, record.rank, record.place.pp, norm, expected, bound))
        if step in evidence.finished_steps and not any_recorded:
            return [_missing(step)]
    if not wrong:
        return []
    step, rank, stage, norm, expected, bound = wrong[0]
    differing = sorted({step for step, *_ in wrong})
    ratio = (
        ratio_name(norm / expected, factors_of(evidence, step), evidence.tolerances.ratio_screen) if expected else None
    )
    measured = distance(norm, expected, bound)
    named = f"; the ratio is {ratio}" if ratio else f"; the ratio is {norm / expected:.4g}" if expected else ""
    return [
        CheckFinding(
            fault_class=f"{fault_classes.NORMALISATION}: {ratio}" if ratio else fault_classes.GRADIENT_REDUCTION,
            message=f"gradient norm of step {step} on rank {rank}: {norm:.9g}, {origin} {expected:.9g}, off by "
            f"{measured:.3g} > {bound_text(bound)}{named}; {len(differing)} of {len(evidence.steps)} steps differ",
            where={"stage": stage, "rank": rank, "step": step} | ({"ratio": ratio} if ratio else {}),
            measured=measured,
            bound=stated(bound),
        )
    ]


def _missing(step: int) -> CheckFinding:
    return CheckFinding(
        fault_class=fault_classes.UNKNOWN,
        message=f"no rank recorded a gradient norm in step {step}",
        where={"step": step},
        measured=None,
        bound=exactly("recorded", "every finished step has one"),
    )


def grad_norms(evidence: CellEvidence) -> dict[int, float]:
    """Return step -> gradient norm of the first rank that recorded one."""
    norms: dict[int, float] = {}
    for step in evidence.finished_steps:
        for _, recorded in evidence.step_records(step):
            if recorded.grad_norm is not None:
                norms.setdefault(step, recorded.grad_norm)
    return norms
