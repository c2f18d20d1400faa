"""Distances between measured and expected values, and bounds as text and JSON."""

from __future__ import annotations

import math
from typing import Any

from harness.core.run.tensor_records import Fingerprint
from harness.core.tolerances import Bound


def distance(measured: float, expected: float, bound: Bound) -> float:
    """Return |a - b| / |b|, or |a - b| if the bound is absolute or b is zero. NaN if either is.

    0 on the side that the bound's direction ignores.
    """
    if (bound.direction == "above" and measured < expected) or (bound.direction == "below" and measured > expected):
        return 0.0
    difference = abs(measured - expected)
    return difference if bound.unit == "absolute" or expected == 0 else difference / abs(expected)


def fingerprint_distance(
    measured: Fingerprint, expected: Fingerprint, bound: Bound | None = None, *, least_norm: float = 0.0
) -> float:
    """Estimate ||a - b|| / ||b||, or ||a - b|| if the bound is absolute or b is zero. NaN if a value is.

    `least_norm` takes the place of a smaller ||b||.

    A projection on a standard normal vector r has E[(r.a - r.b)^2] = ||a - b||^2, so the root mean square of the
    differences estimates the norm of the difference; the difference of the norms is a lower bound of it.
    """
    pairs = list(zip(measured.projections, expected.projections, strict=True))
    spread = math.sqrt(sum((a - b) ** 2 for a, b in pairs) / len(pairs)) if pairs else 0.0
    if not (measured.norm_sq >= 0 and expected.norm_sq >= 0):
        return math.nan
    norm, expected_norm = math.sqrt(measured.norm_sq), math.sqrt(expected.norm_sq)
    largest = max(spread, abs(norm - expected_norm))
    absolute = bound is not None and bound.unit == "absolute"
    scale = max(expected_norm, least_norm)
    return largest if absolute or not scale else largest / scale


def add(left: Fingerprint, right: Fingerprint) -> Fingerprint:
    """Return the fingerprint of two shards together."""
    return Fingerprint(
        norm_sq=left.norm_sq + right.norm_sq,
        projections=[a + b for a, b in zip(left.projections, right.projections, strict=True)],
    )


def finite(fingerprint: Fingerprint) -> bool:
    """Return whether the norm and all projections are finite."""
    return all(math.isfinite(value) for value in (fingerprint.norm_sq, *fingerprint.projections))


def beyond(measured: float, bound: Bound) -> bool:
    """Return whether a distance exceeds its bound; a NaN distance does not (`finiteness` is a separate check)."""
    return measured > bound.value


def stated(bound: Bound) -> dict[str, Any]:
    """Return a bound as a finding's JSON value, with its origin."""
    side = {} if bound.direction == "either" else {"direction": bound.direction}
    return {"value": bound.value, "unit": bound.unit, **side, "origin": bound.origin}


def exactly(value: Any, origin: str) -> dict[str, Any]:
    """Return the bound of an exact comparison as a finding's JSON value."""
    return {"value": value, "origin": f"exact: {origin}"}


def bound_text(bound: Bound) -> str:
    """Return e.g. '0.0001 relative (ORIGIN)'."""
    side = "" if bound.direction == "either" else f", {bound.direction} the expected value only"
    unit = "times" if bound.unit == "factor" else bound.unit
    return f"{bound.value:.3g} {unit}{side} ({bound.origin})"
