"""Comparison of what the optimizer made of every parameter, with the reference and among copies."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from harness.core.run.records import RankRecord
from harness.core.run.tensor_records import Fingerprint, UpdateSeen
from harness.core.tolerances import Bound
from harness.judge.checks.finding import CheckFinding
from harness.judge.diagnosis import fault_classes
from harness.judge.evidence.assemble import copies
from harness.judge.evidence.cell_evidence import CellEvidence
from harness.judge.locations import numbered, where_of
from harness.judge.stats.distance import beyond, bound_text, fingerprint_distance, finite, stated
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
    """Copies that differ from the first one, then whole tensors that differ from the reference's."""
    return [*_among_copies(evidence, kind), *_against_reference(evidence, kind)]


def _among_copies(evidence: CellEvidence, kind: Kind) -> Iterator[Wrong]:
    differing = [*_copies(evidence)]
    if not differing:
        return
    least = _least(evidence, kind, evidence.updates)
    for one in differing:
        if _compared(evidence, kind, one.name):
            off = _distance(one.update, one.copy, kind.field, kind.bound, least.get(one.name, 0.0))
            if off is not None:
                yield Wrong(one.name, off, kind.bound, one.record, one.other)


def _copies(evidence: CellEvidence) -> Iterator[_Copy]:
    """Copies of a parameter over dp, cp and, where it is not sharded, tp, that are not equal bit for bit."""
    for record, seen, other, copy in copies(evidence.records):
        if seen.update is not None and copy.update is not None and seen.update != copy.update:
            yield _Copy(seen.name, seen.update, copy.update, record, other)


def _against_reference(evidence: CellEvidence, kind: Kind) -> Iterator[Wrong]:
    reference = evidence.reference
    if reference is None or not evidence.same_rows:
        return
    measured, expected = evidence.updates, reference.updates
    least = _least(evidence, kind, expected)
    for name, right in expected.items():
        found = measured.get(name)
        if found is None or not _compared(evidence, kind, name):
            continue
        bound = evidence.weight_bound(kind.field, name, kind.bound)
        if bound is None:
            continue  # rounding decides
        if (off := _distance(found, right, kind.field, bound, least.get(name, 0.0))) is not None:
            yield Wrong(name, off, bound)


def _compared(evidence: CellEvidence, kind: Kind, name: str) -> bool:
    return kind.noise or name not in evidence.tolerances.noise_only


def _least(evidence: CellEvidence, kind: Kind, whole: dict[str, UpdateSeen]) -> dict[str, float]:
    found = (getattr(one, kind.field) for one in whole.values())
    return least_norms(evidence.tolerances, (one for one in found if one is not None))


def _distance(found: UpdateSeen, right: UpdateSeen, field: str, bound: Bound, least: float) -> float | None:
    """The distance if it is beyond the bound; values that are not finite are left to `finiteness`.

    A rank that did not finish has no change over all steps.
    """
    mine: Fingerprint | None = getattr(found, field)
    theirs: Fingerprint | None = getattr(right, field)
    if mine is None or theirs is None or not (finite(mine) and finite(theirs)):
        return None
    off = fingerprint_distance(mine, theirs, bound, least_norm=least)
    return off if beyond(off, bound) else None


def finding(evidence: CellEvidence, kind: Kind, wrong: list[Wrong]) -> CheckFinding:
    first = wrong[0]
    names = list(dict.fromkeys(item.name for item in wrong))
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
