"""Weights with their adapters merged by upstream equal the control's, and give the output of the adapted layer.

A wrong scale, or shards of an adapter that are put together wrongly, show in either; the output shows what cell and
control have in common.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

from harness.core.run.tensor_records import Fingerprint, MergedSeen
from harness.core.tolerances import Bound
from harness.judge.checks.finding import CheckFinding
from harness.judge.diagnosis import fault_classes
from harness.judge.diagnosis.boundaries import layer_of
from harness.judge.evidence.adapters import merged_copies, whole_merged
from harness.judge.evidence.cell_evidence import CellEvidence
from harness.judge.stats.distance import beyond, bound_text, fingerprint_distance, finite, stated

_SIGNS = "2 sqrt({steps} x {gradient:g}), the bound of gradients: Adam's updates are about their signs"


def check(evidence: CellEvidence) -> list[CheckFinding]:
    peft = evidence.cell.config.model.peft
    if peft is None or not peft.merges or not _complete(evidence):
        return []
    wrong = [*_outputs(evidence), *_copies(evidence), *_against_control(evidence)]
    if not wrong:
        return []
    name, what, off, bound = wrong[0]
    layer = layer_of(name)
    count = len({item[0] for item in wrong})
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
    """Whether every rank finished the last step, so that all shards are there."""
    done = sum(1 for _ in evidence.step_records(evidence.steps[-1])) if evidence.steps else 0
    return done == evidence.layout.world_size


def _outputs(evidence: CellEvidence) -> Iterator[tuple[str, str, float, Bound]]:
    bound = evidence.tolerances.parameter_gradient
    relative = replace(bound, unit="relative")
    for rank in sorted(evidence.records):
        for seen in evidence.records[rank].merged:
            off = seen.output_off
            if off is not None and not off <= relative.value:
                what = f"on rank {rank}, its output differs from that of the layer with its adapter"
                yield seen.name, what, off, relative


def _copies(evidence: CellEvidence) -> Iterator[tuple[str, str, float, Bound]]:
    bound = evidence.tolerances.parameter_gradient
    for record, seen, other, copy in merged_copies(evidence.records):
        for found, right in ((seen.before, copy.before), (seen.after, copy.after)):
            if found and right and (off := _distance(found, right, bound)) is not None:
                yield seen.name, f"on rank {record.rank}, it differs from its copy on rank {other}", off, bound


def _against_control(evidence: CellEvidence) -> Iterator[tuple[str, str, float, Bound]]:
    if evidence.control is None:
        return
    bound = evidence.tolerances.parameter_gradient
    expected = whole_merged(evidence.control.records)
    for name, seen in whole_merged(evidence.records).items():
        if (right := expected.get(name)) is None:
            yield name, "the control does not have it, so it is off", math.inf, bound
            continue
        first = 0 in evidence.steps  # else it continues from weights that the control does not record
        if first and (off := _distance(seen.before, right.before, bound)) is not None:
            yield name, "of the initial weights, it differs from the control's", off, bound
        elif (after := _trained(evidence, seen, right)) is not None:
            yield name, "after the last step, it differs from the control's", *after


def _trained(evidence: CellEvidence, seen: MergedSeen, right: MergedSeen) -> tuple[float, Bound] | None:
    """Where the steps have the same rows: the distance beyond the bound of trained weights."""
    gradient, steps = evidence.tolerances.parameter_gradient, evidence.cell.config.train.steps
    if not evidence.same_rows or not seen.after or not right.after:
        return None
    value = 2 * math.sqrt(steps * gradient.value)
    start = replace(gradient, value=value, origin=_SIGNS.format(steps=steps, gradient=gradient.value))
    bound = evidence.weight_bound("merged", seen.name, start)
    off = None if bound is None else _distance(seen.after, right.after, bound)
    return None if off is None or bound is None else (off, bound)


def _distance(found: Fingerprint, right: Fingerprint, bound: Bound) -> float | None:
    """The distance, if it is beyond the bound."""
    if not finite(found) or not finite(right):
        return math.inf
    off = fingerprint_distance(found, right, bound)
    return off if beyond(off, bound) else None
