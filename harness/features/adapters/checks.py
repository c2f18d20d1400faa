"""Adapters: other weights do not train, and merged weights are sums."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

from harness.core.outcomes import Lane
from harness.core.run.records import RankRecord
from harness.core.run.tensor_records import Fingerprint, MergedSeen
from harness.core.tolerances import Bound
from harness.features.adapters.config import is_adapter
from harness.judge.checks.finding import CheckFinding, check
from harness.judge.diagnosis import fault_classes
from harness.judge.diagnosis.localise import layer_of
from harness.judge.evidence.assemble import merged_copies, whole_merged
from harness.judge.evidence.cell_evidence import CellEvidence
from harness.judge.locations import numbered, where_of
from harness.judge.stats.distance import beyond, bound_text, exactly, fingerprint_distance, finite, stated


@check(Lane.NUMERICS)
def frozen_weights(evidence: CellEvidence) -> list[CheckFinding]:
    """Check that nothing but adapters trains: other weights have no gradient, and the same bytes after the last step.

    A part of a cell that continues in the same layout has loaded the bytes that the first part had.
    """
    if evidence.cell.config.model.peft is None:
        return []
    changed = [*_wrong(evidence), *_loaded(evidence)]
    if not changed:
        return []
    record, name, what = changed[0]
    names = list(dict.fromkeys(name for _, name, _ in changed))
    ranks = sorted({record.rank for record, *_ in changed})
    return [
        CheckFinding(
            fault_class=fault_classes.FROZEN,
            message=f"{name}, which belongs to no adapter, {what} on rank {record.rank} ({record.place}); "
            f"wrong: {numbered('weight', names)} on {numbered('rank', ranks)}",
            where=where_of(record.place, rank=record.rank, parameter=name) | {"ranks": ranks},
            measured=len(names),
            bound=exactly(0, "only adapters train"),
        )
    ]


def _wrong(evidence: CellEvidence) -> Iterator[tuple[RankRecord, str, str]]:
    """Yield (record, name, what) of every weight that is not left alone."""
    for rank in sorted(evidence.records):
        record = evidence.records[rank]
        yield from (
            (record, parameter.name, "trains") for parameter in record.parameters if not is_adapter(parameter.name)
        )
        for frozen in record.frozen:
            if is_adapter(frozen.name):
                continue  # `parameter_gradients` misses it
            if frozen.gradient:
                yield record, frozen.name, "has a gradient"
            elif frozen.after and frozen.after != frozen.before:
                yield record, frozen.name, f"changed by step {evidence.steps[-1]}"


def _loaded(evidence: CellEvidence) -> Iterator[tuple[RankRecord, str, str]]:
    saved = evidence.saved
    if saved is None or saved.layout != evidence.layout:
        return
    for rank in sorted(evidence.records.keys() & saved.records.keys()):
        saved_bytes = {weight.name: weight.before for weight in saved.records[rank].frozen}
        for weight in evidence.records[rank].frozen:
            if not is_adapter(weight.name) and saved_bytes.get(weight.name, weight.before) != weight.before:
                yield evidence.records[rank], weight.name, "is loaded with other bytes than it was saved with"


_SIGNS = "2 sqrt({steps} x {gradient:g}), the bound of gradients: Adam's updates are about their signs"


@check(Lane.NUMERICS)
def merged_weights(evidence: CellEvidence) -> list[CheckFinding]:
    """Check that weights that upstream merged with their adapters equal the control's, and give the layer's output.

    A wrong scale, or shards of an adapter that are put together wrongly, show in either; the output shows what cell and
    control have in common.
    """
    peft = evidence.cell.config.model.peft
    if peft is None or not peft.merges or not _complete(evidence):
        return []
    wrong = [*_outputs(evidence), *_copies(evidence), *_against_control(evidence)]
    if not wrong:
        return []
    name, what, off, bound = wrong[0]
    layer = layer_of(name)
    count = len({name for name, *_ in wrong})
    return [
        CheckFinding(
            fault_class=fault_classes.MERGED,
            message=f"merged weight {name}: {what} by {off:.3g} > {bound_text(bound)}; {count} merged weights differ",
            where={"parameter": name} | ({"layer": layer} if layer else {}),
            measured=off,
            bound=stated(bound),
        )
    ]


def _complete(evidence: CellEvidence) -> bool:
    """Return whether every rank finished the last step, so that all shards are there."""
    done = sum(1 for _ in evidence.step_records(evidence.steps[-1])) if evidence.steps else 0
    return done == evidence.layout.world_size


def _outputs(evidence: CellEvidence) -> Iterator[tuple[str, str, float, Bound]]:
    bound = evidence.tolerances.parameter_gradient
    relative = replace(bound, unit="relative")
    for rank in sorted(evidence.records):
        for weight in evidence.records[rank].merged:
            off = weight.output_off
            # `not <=` rather than `>`, so that NaN is a finding.
            if off is not None and not off <= relative.value:
                what = f"on rank {rank}, its output differs from that of the layer with its adapter"
                yield weight.name, what, off, relative


def _copies(evidence: CellEvidence) -> Iterator[tuple[str, str, float, Bound]]:
    bound = evidence.tolerances.parameter_gradient
    for record, weight, first_rank, copy in merged_copies(evidence.records):
        for merged, first in ((weight.before, copy.before), (weight.after, copy.after)):
            if merged and first and (off := _distance(merged, first, bound)) is not None:
                yield weight.name, f"on rank {record.rank}, it differs from its copy on rank {first_rank}", off, bound


def _against_control(evidence: CellEvidence) -> Iterator[tuple[str, str, float, Bound]]:
    if evidence.control is None:
        return
    bound = evidence.tolerances.parameter_gradient
    expected = whole_merged(evidence.control.records)
    for name, weight in whole_merged(evidence.records).items():
        if (control_seen := expected.get(name)) is None:
            yield name, "the control does not have it, so it is off", math.inf, bound
            continue
        first = 0 in evidence.steps  # else it continues from weights that the control does not record
        if first and (off := _distance(weight.before, control_seen.before, bound)) is not None:
            yield name, "of the initial weights, it differs from the control's", off, bound
        elif (after := _trained(evidence, weight, control_seen)) is not None:
            yield name, "after the last step, it differs from the control's", *after


def _trained(evidence: CellEvidence, weight: MergedSeen, control_seen: MergedSeen) -> tuple[float, Bound] | None:
    """Return the distance of trained weights with its bound, if beyond; None too where steps have other rows."""
    gradient, steps = evidence.tolerances.parameter_gradient, evidence.cell.config.train.steps
    if not evidence.same_rows or not weight.after or not control_seen.after:
        return None
    # A gradient off by a share g turns the sign of about that share of updates; over the steps they add up like a
    # random walk.
    value = 2 * math.sqrt(steps * gradient.value)
    start = replace(gradient, value=value, origin=_SIGNS.format(steps=steps, gradient=gradient.value))
    bound = evidence.weight_bound("merged", weight.name, start)
    off = None if bound is None else _distance(weight.after, control_seen.after, bound)
    return None if off is None or bound is None else (off, bound)


def _distance(measured: Fingerprint, expected: Fingerprint, bound: Bound) -> float | None:
    """Return the distance, if it is beyond the bound."""
    if not finite(measured) or not finite(expected):
        # A merged weight that is not finite is in no scan of `finiteness`, which reads what ranks computed in training.
        return math.inf
    off = fingerprint_distance(measured, expected, bound)
    return off if beyond(off, bound) else None
