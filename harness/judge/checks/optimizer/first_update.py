"""What the optimizer's first update makes of the gradients equals the control's: Adam's moments and the change of every
weight. With right gradients, it shows what lies between them and the weights: clipping, the optimizer's shards, decay.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

from harness.core.run.records import RankRecord
from harness.core.run.tensor_records import Fingerprint, UpdateSeen
from harness.core.tolerances import Bound
from harness.judge.checks.finding import CheckFinding
from harness.judge.checks.numerics import parameter_gradients, replica_gradients
from harness.judge.diagnosis import fault_classes
from harness.judge.evidence.assemble import copies
from harness.judge.evidence.cell_evidence import CellEvidence
from harness.judge.locations import numbered, where_of
from harness.judge.stats.distance import beyond, bound_text, fingerprint_distance, finite, stated
from harness.judge.stats.noise import least_norms

_ACCEPTS_NONE = 1.0  # a relative bound from which on an update that did not take place would pass
_SQUARE = "the square of a gradient is off by twice as much"
_SIGNS = "Adam's first update is the sign of the gradient; an error of relative size e changes about a share e of signs"


class _Kind(NamedTuple):
    """A tensor of the optimizer, of every parameter."""

    field: str  # of UpdateSeen
    text: str
    bound: Bound
    noise: bool = False  # whether it can be compared where the gradient is nothing but rounding noise


class _Wrong(NamedTuple):
    name: str
    off: float
    record: RankRecord | None = None  # the rank that differs from a copy; None: the whole differs from the control's
    copy: int = 0  # rank of that copy


class _Copy(NamedTuple):
    name: str
    update: UpdateSeen
    copy: UpdateSeen  # on rank `other`
    record: RankRecord
    other: int


def check(evidence: CellEvidence) -> list[CheckFinding]:
    if not evidence.fingerprinted:
        return []
    differing = [*_copies(evidence)]
    for kind in _kinds(evidence):
        if wrong := [*_among_copies(evidence, kind, differing), *_against_control(evidence, kind)]:
            if parameter_gradients.check(evidence) or replica_gradients.check(evidence):
                return []  # a consequence of wrong gradients
            return [_finding(kind, wrong)]
    return []


def _kinds(evidence: CellEvidence) -> list[_Kind]:
    """What is compared: the bounds follow from that of gradients, and must be able to tell an update from none."""
    bound = evidence.tolerances.parameter_gradient
    double = replace(bound, value=4 * bound.value, origin=f"{bound.origin}; {_SQUARE}")
    signs = replace(bound, value=2 * math.sqrt(bound.value), origin=f"{bound.origin}; {_SIGNS}")
    first = _Kind("first_moment", "first moment", bound, noise=True)
    if bound.unit == "absolute":  # a first moment is smaller than its gradient; the others have another scale
        return [first]
    others = (
        _Kind("second_moment", "second moment", double),
        _Kind("change", "change by the first update", signs),
    )
    return [first, *(kind for kind in others if kind.bound.value < _ACCEPTS_NONE)]


def _copies(evidence: CellEvidence) -> Iterator[_Copy]:
    """Copies of a parameter over dp, cp and, where it is not sharded, tp, that are not equal bit for bit."""
    for record, seen, other, copy in copies(evidence.records):
        if seen.update is not None and copy.update is not None and seen.update != copy.update:
            yield _Copy(seen.name, seen.update, copy.update, record, other)


def _among_copies(evidence: CellEvidence, kind: _Kind, differing: list[_Copy]) -> Iterator[_Wrong]:
    if not differing:
        return
    least = _least(evidence, kind, evidence.updates)
    for one in differing:
        if _compared(evidence, kind, one.name):
            off = _distance(one.update, one.copy, kind, least.get(one.name, 0.0))
            if off is not None:
                yield _Wrong(one.name, off, one.record, one.other)


def _against_control(evidence: CellEvidence, kind: _Kind) -> Iterator[_Wrong]:
    control = evidence.control
    if control is None or not evidence.same_rows:
        return
    measured, expected = evidence.updates, control.updates
    least = _least(evidence, kind, expected)
    for name, right in expected.items():
        found = measured.get(name)
        if found is None or not _compared(evidence, kind, name):
            continue
        if (off := _distance(found, right, kind, least.get(name, 0.0))) is not None:
            yield _Wrong(name, off)


def _compared(evidence: CellEvidence, kind: _Kind, name: str) -> bool:
    return kind.noise or name not in evidence.tolerances.noise_only


def _least(evidence: CellEvidence, kind: _Kind, whole: dict[str, UpdateSeen]) -> dict[str, float]:
    return least_norms(evidence.tolerances, (getattr(one, kind.field) for one in whole.values()))


def _distance(found: UpdateSeen, right: UpdateSeen, kind: _Kind, least: float) -> float | None:
    """The distance if it is beyond the bound; values that are not finite are left to `finiteness`."""
    mine: Fingerprint = getattr(found, kind.field)
    theirs: Fingerprint = getattr(right, kind.field)
    if not (finite(mine) and finite(theirs)):
        return None
    off = fingerprint_distance(mine, theirs, kind.bound, least_norm=least)
    return off if beyond(off, kind.bound) else None


def _finding(kind: _Kind, wrong: list[_Wrong]) -> CheckFinding:
    first = wrong[0]
    names = list(dict.fromkeys(item.name for item in wrong))
    where = {"parameter": first.name, "step": 0, "parameters": names[:16]}
    against = "the control"
    if first.record is not None:
        where |= where_of(first.record.place, rank=first.record.rank)
        against = f"its copy on rank {first.copy}; here rank {first.record.rank} ({first.record.place})"
    return CheckFinding(
        fault_class=fault_classes.OPTIMIZER,
        message=f"{kind.text} of {first.name}, whose gradient is right, is off by {first.off:.3g} > "
        f"{bound_text(kind.bound)} from {against}; differing: {numbered('parameter', names)}",
        where=where,
        measured=first.off,
        bound=stated(kind.bound),
    )
