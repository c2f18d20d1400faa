"""Paired ratios of times: median, confidence interval, and whether they are beyond a bound.

Times are compared only in pairs that ran right after each other: the ratio of each round is one sample. The interval is
that of the sign test: between order statistics of the samples, exact for any distribution of independent noise, and
insensitive to outliers. Ratios are dimensionless.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace

LEVEL = 0.01  # one-sided: the chance that an end of the interval is beyond the true median


@dataclass(frozen=True, kw_only=True)
class PairedRatio:
    """`low` and `high` each miss the true median with probability <= LEVEL; 0 and infinity: too few rounds."""

    median: float
    low: float
    high: float
    rounds: int

    def times(self, factor: float) -> PairedRatio:
        """Return the ratio of times per unit of work; `factor` is the base's amount of work over that of the times."""
        low, high = self.low * factor, self.high * factor
        return replace(self, median=self.median * factor, low=low, high=high)

    def above(self, bound: float) -> bool:
        """Return whether the whole interval is above the bound, so that the ratio is above it significantly."""
        return self.low > bound

    def verdict(self, bound: float) -> str:
        """Return slower | faster | no difference, of a time over its base; `bound` > 1 is the smallest that counts."""
        if self.above(bound):
            return "slower"
        return "faster" if self.high < 1 / bound else "no difference"


def paired_ratio(times: Sequence[float], base: Sequence[float], *, level: float = LEVEL) -> PairedRatio | None:
    """Return the ratio of times to the base's, round by round; None if both are positive and finite in no round."""
    ratios = sorted(
        seconds / base_seconds
        for seconds, base_seconds in zip(times, base)
        if _usable(seconds) and _usable(base_seconds)
    )
    if not ratios:
        return None
    outside = _outside(len(ratios), level)
    return PairedRatio(
        median=statistics.median(ratios),
        low=ratios[outside - 1] if outside else 0.0,
        high=ratios[-outside] if outside else math.inf,
        rounds=len(ratios),
    )


def _usable(seconds: float) -> bool:
    return math.isfinite(seconds) and seconds > 0


def _outside(rounds: int, level: float) -> int:
    """Return the largest k for which the k-th smallest of `rounds` samples exceeds the median, at most by `level`.

    That is the probability of fewer than k heads in `rounds` throws of a coin. 0 if there is no such k.
    """
    chance, k = 0.0, 0
    while k <= rounds:
        chance += math.comb(rounds, k) / 2.0**rounds
        if chance > level:
            break
        k += 1
    return k


def ratio_text(ratio: PairedRatio) -> str:
    """Return e.g. '3.1 times (2.9 to 3.4 in 7 rounds)'."""
    return f"{ratio.median:.3g} times ({ratio.low:.3g} to {ratio.high:.3g} in {ratio.rounds} rounds)"
