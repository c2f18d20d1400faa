"""Distances between a measured value and its reference, and names for telling ratios."""

from __future__ import annotations

import itertools
import math

from harness.words.layout import Layout
from harness.words.records import Fingerprint
from harness.words.tolerances import Bound


def distance(measured: float, reference: float, bound: Bound) -> float:
    """|a - b| / |b|, or |a - b| when the bound is absolute or the reference is zero. NaN when either is."""
    difference = abs(measured - reference)
    return difference if bound.unit == "absolute" or reference == 0 else difference / abs(reference)


def fingerprint_distance(measured: Fingerprint, reference: Fingerprint) -> float:
    """Estimate of ||a - b|| / ||b||; ||a - b|| when the reference is zero. NaN when a value is.

    A projection on a standard normal vector r has E[(r.a - r.b)^2] = ||a - b||^2, so the root mean square of the
    differences estimates the norm of the difference; the difference of the norms is a lower bound of it.
    """
    pairs = list(zip(measured.projections, reference.projections))
    spread = math.sqrt(sum((a - b) ** 2 for a, b in pairs) / len(pairs)) if pairs else 0.0
    if not (measured.norm_sq >= 0 and reference.norm_sq >= 0):
        return math.nan
    norm, reference_norm = math.sqrt(measured.norm_sq), math.sqrt(reference.norm_sq)
    largest = max(spread, abs(norm - reference_norm))
    return largest / reference_norm if reference_norm else largest


def finite(fingerprint: Fingerprint) -> bool:
    return all(math.isfinite(value) for value in (fingerprint.norm_sq, *fingerprint.projections))


def ratio_name(ratio: float, layout: Layout, micro_batches: int, screen: float) -> str | None:
    """'x cp', 'x 1/(cp tp)' ... when the ratio is within `screen` (relative) of a factor of the layout, else None.

    Factors of one dimension go before products of two; dimensions of equal size are all named.
    """
    sizes = {
        "cp": layout.cp,
        "dp": layout.dp,
        "tp": layout.tp,
        "pp": layout.pp,
        "vpp": layout.vpp,
        "micro-batches": micro_batches,
    }
    single = {name: float(size) for name, size in sizes.items() if size > 1}
    double = {f"({a} {b})": single[a] * single[b] for a, b in itertools.combinations(single, 2)}
    for factors in (single, double):
        for power, prefix in ((1, "x "), (-1, "x 1/")):
            names = [name for name, value in factors.items() if abs(ratio / value**power - 1) <= screen]
            if names:
                return prefix + " or ".join(names)
    return None


def beyond(measured: float, bound: Bound) -> bool:
    """Whether a distance breaks its bound; a NaN distance does not (finiteness is a check of its own)."""
    return measured > bound.value


def bound_text(bound: Bound) -> str:
    return f"{bound.value:g} {bound.unit} ({bound.origin})"
