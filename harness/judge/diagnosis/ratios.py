"""Names for ratios that equal a factor of the layout: these point to a normalisation fault.

Bugs D2, D4, D8 and D9 of the corpus show up as whole factors.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping

from harness.core.run.tensor_records import Fingerprint
from harness.judge.evidence.cell_evidence import CellEvidence
from harness.judge.stats.distance import fingerprint_distance

DOCUMENTS = "documents per pack"
_PRODUCTS = 0.1  # of the screen, for products of two factors: there are so many that nearly every number is near one


def factors_of(evidence: CellEvidence, step: int) -> dict[str, float]:
    """Return name -> size of each factor that a sum may be multiplied or divided by once too often, sizes of 1 aside.

    DOCUMENTS is among them if every pack of the step holds equally many.
    """
    layout, packs = evidence.layout, [truth.batch for replica in evidence.plan[step] for truth in replica]
    sizes = {
        "cp": layout.cp,
        "dp": layout.dp,
        "tp": layout.tp,
        "pp": layout.pp,
        "vpp": layout.vpp,
        "ep": layout.ep,
        "etp": layout.etp,
        "micro-batches": len(evidence.plan[step][0]),
    }
    counts = {len(pack.placed) for pack in packs}
    if evidence.packed and len(counts) == 1:
        sizes[DOCUMENTS] = counts.pop()
    return {name: float(size) for name, size in sizes.items() if size > 1}


def ratio_name(ratio: float, factors: Mapping[str, float], screen: float) -> str | None:
    """Return 'x cp', 'x 1/(cp tp)' ... when the ratio is within `screen` (relative) of a factor or its inverse.

    Single factors come before products of two, which must match ten times as closely; factors of equal size are all
    named.
    """
    for group, closeness in ((dict(factors), screen), (_products(factors), screen * _PRODUCTS)):
        for power, prefix in ((1, "x "), (-1, "x 1/")):
            names = [name for name, value in group.items() if abs(ratio / value**power - 1) <= closeness]
            if names:
                return prefix + " or ".join(names)
    return None


def stated_ratio(ratio: float | str) -> str:
    """Return a ratio, or its name, in the message of a finding; known_issues.py looks for it there."""
    return f"the ratio is {ratio if isinstance(ratio, str) else f'{ratio:.4g}'};"


def _products(factors: Mapping[str, float]) -> dict[str, float]:
    return {f"({a} {b})": factors[a] * factors[b] for a, b in itertools.combinations(factors, 2)}


def common_ratio(ratios: Iterable[tuple[float, Mapping[str, float]]], screen: float) -> str | None:
    """Return the one name that fits every (ratio, its own factors), else None.

    A ratio of 1 fits a factor of 1, whose name is not in the factors. At least two ratios must differ from 1: a single
    number may match by chance.
    """
    pairs = list(ratios)
    off = [pair for pair in pairs if abs(pair[0] - 1) > screen]
    if len(off) < 2:
        return None
    names = [(power, name) for name in off[0][1] for power in (1, -1)]
    fitting = [
        (power, name)
        for power, name in names
        if all(abs(ratio / factors.get(name, 1.0) ** power - 1) <= screen for ratio, factors in pairs)
    ]
    if not fitting:
        return None
    power = fitting[0][0]
    return ("x " if power == 1 else "x 1/") + " or ".join(name for exponent, name in fitting if exponent == power)


def scale_of(pairs: Iterable[tuple[Fingerprint, Fingerprint]], screen: float) -> float | None:
    """Return the one factor by which every (measured, control) fingerprint is scaled, direction unchanged, or None.

    Projections scale with the norm, so a different tensor whose norm happens to fit is not reported as one.
    """
    ratios: list[float] = []
    for measured, control in pairs:
        if not (measured.norm_sq > 0 and control.norm_sq > 0):
            return None
        ratio = math.sqrt(measured.norm_sq / control.norm_sq)
        scaled = Fingerprint(
            norm_sq=control.norm_sq * ratio**2, projections=[value * ratio for value in control.projections]
        )
        if not fingerprint_distance(measured, scaled) <= screen:
            return None
        ratios.append(ratio)
    if not ratios or max(ratios) > min(ratios) * (1 + screen):
        return None
    return sum(ratios) / len(ratios)
