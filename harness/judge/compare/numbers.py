"""Numbers of one cell in two runs: drift of loss and gradient norm, and times that became slower or faster.

Two runs are apart in time, so their times are compared with care: ratios that each run measured by itself, round by
round, hold whatever the machine did; times in seconds count only on the same hardware, and wall clock times
only on GPUs, since a CPU is shared.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from harness.core.text import counted
from harness.core.tolerances import Bound
from harness.judge.report.model import LossCurve, ReportCell, Throughput, TimedRatio
from harness.judge.stats.distance import distance
from harness.judge.stats.paired import LEVEL, paired_ratio

Compared = Literal["loss", "gradient norm"]
_UNDECIDED = "undecided"
_ENOUGH = math.ceil(math.log2(1 / LEVEL))  # rounds: with fewer, a sign test cannot reach the level
_RELATIVE = Bound(value=0.0)


@dataclass(frozen=True, kw_only=True)
class Drift:
    """How far a quantity of the training steps moved from one run to the other; a NaN in one run alone is infinite."""

    what: Compared
    steps: int  # number that both runs have
    largest: float  # relative difference, absolute where the earlier value is zero or the bound says so
    step: int  # where it is largest
    first: int | None  # first step that differs at all; None: all are equal, bit for bit
    lengths: tuple[int, int]  # steps before, steps after
    bound: Bound | None  # by which the cell is judged; None: not judged

    @property
    def equal(self) -> bool:
        return self.first is None and self.lengths[0] == self.lengths[1]

    @property
    def beyond(self) -> bool:
        return self.bound is not None and self.largest > self.bound.value

    @property
    def brief(self) -> str:
        """Equal, or from which step on it differs and by how much at most."""
        other = f"; {self.lengths[0]} steps before, {self.lengths[1]} after" if len(set(self.lengths)) > 1 else ""
        if self.first is None:
            return f"equal in {counted(self.steps, 'step')}{other}"
        bound = f", bound {self.bound.value:.3g}" if self.bound else ""
        return f"differs from step {self.first} on, by {self.largest:.3g} at most (step {self.step}{bound}){other}"

    @property
    def text(self) -> str:
        return f"{self.what}: {self.brief}"


def drifts(before: ReportCell, after: ReportCell, bounds: LossCurve) -> list[Drift]:
    """Drifts of loss and gradient norm, if both runs have steps. `bounds`: a curve with the bounds of the cell."""
    pairs: tuple[tuple[Compared, list[float], list[float], Bound | None], ...] = (
        ("loss", before.curve.loss, after.curve.loss, bounds.loss_bound),
        ("gradient norm", before.curve.grad_norm, after.curve.grad_norm, bounds.grad_norm_bound),
    )
    return [_drift(what, old, new, bound) for what, old, new, bound in pairs if old and new]


def _drift(what: Compared, before: Sequence[float], after: Sequence[float], bound: Bound | None) -> Drift:
    far = [_far(new, old, bound or _RELATIVE) for old, new in zip(before, after)]
    largest = max(far)
    return Drift(
        what=what,
        steps=len(far),
        largest=largest,
        step=far.index(largest),
        first=next((step for step, one in enumerate(far) if one), None),
        lengths=(len(before), len(after)),
        bound=bound,
    )


def _far(after: float, before: float, bound: Bound) -> float:
    """Distance of two values in either direction, since a drift has no good one."""
    if after == before or (math.isnan(after) and math.isnan(before)):
        return 0.0
    far = distance(after, before, Bound(value=bound.value, unit=bound.unit))
    return math.inf if math.isnan(far) else far


@dataclass(frozen=True, kw_only=True)
class TimeChange:
    """Ratio of a time to that in the earlier run, with its confidence interval."""

    ratio: TimedRatio
    judged: bool  # whether slower than the bound is a regression
    why_not: str = ""  # if not judged

    @property
    def slower(self) -> bool:
        return self.judged and self.ratio.verdict == "slower"

    @property
    def text(self) -> str:
        return f"{self.ratio.what}: {self.ratio.text}" + (f" ({self.why_not})" if self.why_not else "")


def time_changes(
    before: Throughput, after: Throughput, *, why_not: str, on_cpu: bool, bound: Bound
) -> list[TimeChange]:
    """Changes of everything that both runs timed. `why_not`: why seconds cannot be compared; empty: they can."""
    found = [TimeChange(ratio=ratio, judged=True) for ratio in _ratios(before, after, bound)]
    rounds = [
        (f"timing leg, {load}", times, after.rounds_s[load], why_not)
        for load, times in before.rounds_s.items()
        if load in after.rounds_s
    ]
    shared = why_not or ("wall clock of a shared CPU: shown, not judged" if on_cpu else "")
    steps = [("training step", before.step_times_s, after.step_times_s, shared)]
    for what, old, new, reason in [*rounds, *steps]:
        change = _times(what, old, new, bound)
        if change is not None:
            found.append(TimeChange(ratio=change, judged=not reason, why_not=reason))
    return found


def _ratios(before: Throughput, after: Throughput, bound: Bound) -> Iterator[TimedRatio]:
    """Changes of ratios that both runs measured, with intervals from the ends of both: wide rather than wrong."""
    known = {ratio.what: ratio for ratio in before.ratios}
    for new in after.ratios:
        old = known.get(new.what)
        if old is not None and old.median > 0:
            yield _timed(
                new.what,
                new.median / old.median,
                new.low / old.high if old.high else 0.0,
                new.high / old.low if old.low else math.inf,
                min(old.rounds, new.rounds),
                bound,
            )


def _times(what: str, before: Sequence[float], after: Sequence[float], bound: Bound) -> TimedRatio | None:
    """Ratio of paired times: step k trains on the same documents in both runs."""
    found = paired_ratio(after, before) if len(after) == len(before) else None
    return _timed(what, found.median, found.low, found.high, found.rounds, bound) if found else None


def _timed(what: str, median: float, low: float, high: float, rounds: int, bound: Bound) -> TimedRatio:
    verdict = "slower" if low > bound.value else "faster" if high < 1 / bound.value else "no difference"
    if verdict == "no difference" and rounds < _ENOUGH:
        verdict = f"{_UNDECIDED}: fewer than {_ENOUGH} rounds"
    return TimedRatio(what=what, median=median, low=low, high=high, rounds=rounds, bound=bound, verdict=verdict)
