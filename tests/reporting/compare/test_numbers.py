from __future__ import annotations

import math
import random
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.core.run.report import Throughput, TimedRatio
from harness.core.tolerances import SLOWER_RUN, Bound
from harness.reporting.compare.runs import Drift, TimeChange, drifts, time_changes
from tests.sample_report import sample_report
from tests.two_runs import cell_of

finite = st.floats(allow_nan=False, allow_infinity=False, width=32)


def loss_drift(before: list[float], after: list[float], bound: Bound | None = None) -> Drift:
    cell = cell_of(sample_report(), "tp1-pp1-cp1-sft")
    old, new = (replace(cell, curve=replace(cell.curve, loss=losses)) for losses in (before, after))
    return drifts(old, new, replace(cell.curve, loss_bound=bound))[0]


@given(st.lists(finite | st.just(math.nan) | st.just(math.inf), min_size=1, max_size=9))
def test_the_same_numbers_are_equal_whatever_they_are(losses: list[float]) -> None:
    drift = loss_drift(losses, list(losses), Bound(value=0.0))
    assert (drift.equal, drift.beyond, drift.largest) == (True, False, 0.0)


@given(st.lists(st.floats(1e-3, 1e3), min_size=1, max_size=9), st.integers(0, 8), st.floats(1e-6, 1))
def test_a_factor_on_one_step_is_found_there(losses: list[float], step: int, factor: float) -> None:
    step %= len(losses)
    after = [value * (1 + factor) if number == step else value for number, value in enumerate(losses)]
    drift = loss_drift(losses, after)
    assert (drift.first, drift.step) == (step, step)
    assert drift.largest == pytest.approx(factor, rel=1e-6)


def test_a_nan_in_one_run_alone_is_beyond_every_bound() -> None:
    for before, after in ([1.0, math.nan], [1.0, 2.0]), ([1.0, 2.0], [1.0, math.nan]):
        drift = loss_drift(before, after, Bound(value=1e6))
        assert (drift.beyond, drift.step, drift.largest) == (True, 1, math.inf)


def test_drift_text_has_the_size_the_step_and_the_number_of_steps() -> None:
    drift = loss_drift([4.0, 3.0, 2.0], [4.0, 3.0003, 2.0], Bound(value=1e-5))
    assert drift.text == "loss: differs from step 1 on, by 0.0001 at most (step 1, bound 1e-05)"
    assert loss_drift([4.0, 3.0], [4.0]).text == "loss: equal in 1 step; 2 steps before, 1 after"
    assert not loss_drift([4.0, 3.0], [4.0]).equal


def test_a_bound_of_one_side_counts_both_ways_between_runs() -> None:
    drift = loss_drift([4.0], [3.0], Bound(value=1e-5, direction="above"))
    assert drift.largest == 0.25


def ratio(median: float, spread: float = 0.05, rounds: int = 7, what: str = "packed over unpacked") -> TimedRatio:
    low, high = median * (1 - spread), median * (1 + spread)
    bound = Bound(value=1.25, unit="factor")
    return TimedRatio(what=what, median=median, low=low, high=high, rounds=rounds, bound=bound, verdict="")


def times(before: Throughput, after: Throughput, *, why_not: str = "", on_cpu: bool = True) -> list[TimeChange]:
    return time_changes(before, after, why_not=why_not, on_cpu=on_cpu, bound=SLOWER_RUN)


def test_a_ratio_that_tripled_is_slower_on_any_machine() -> None:
    (found,) = times(Throughput(ratios=[ratio(1.0)]), Throughput(ratios=[ratio(3.0)]), why_not="other hardware")
    assert found.slower
    assert found.ratio.median == pytest.approx(3.0)
    assert found.ratio.low == pytest.approx(3 * 0.95 / 1.05)


def test_ratios_with_wide_intervals_are_no_difference() -> None:
    (found,) = times(Throughput(ratios=[ratio(1.0, 0.3)]), Throughput(ratios=[ratio(1.5, 0.3)]))
    assert found.ratio.verdict == "no difference"
    (found,) = times(Throughput(ratios=[ratio(1.0, 1.0)]), Throughput(ratios=[ratio(3.0)]))
    assert (found.ratio.low, found.ratio.high) == (pytest.approx(1.425), math.inf)


def test_a_ratio_that_one_run_lacks_is_not_compared() -> None:
    assert times(Throughput(ratios=[ratio(1.0)]), Throughput(ratios=[ratio(3.0, what="another")])) == []


def noisy(seconds: float, count: int = 7) -> list[float]:
    generator = random.Random(count)
    return [seconds * generator.uniform(0.95, 1.05) for _ in range(count)]


def test_rounds_of_the_timing_leg_are_judged_on_the_same_hardware_only() -> None:
    before, after = (Throughput(rounds_s={"step, 256 documents": noisy(seconds)}) for seconds in (0.1, 0.2))
    (found,) = times(before, after)
    assert found.slower
    assert times(after, before)[0].ratio.verdict == "faster"
    (found,) = times(before, after, why_not="other hardware")
    assert (found.slower, found.ratio.verdict, found.why_not) == (False, "slower", "other hardware")


def test_training_steps_are_judged_on_gpus_only() -> None:
    before, after = (Throughput(step_times_s=noisy(seconds, 9)) for seconds in (0.1, 0.2))
    assert [item.slower for item in times(before, after, on_cpu=False)] == [True]
    (found,) = times(before, after, on_cpu=True)
    assert not found.slower
    assert "shown, not judged" in found.text


def test_a_few_rounds_prove_nothing() -> None:
    before, after = (Throughput(step_times_s=noisy(seconds, 3)) for seconds in (0.1, 0.9))
    (found,) = times(before, after, on_cpu=False)
    assert not found.slower
    assert found.ratio.verdict == "undecided: fewer than 7 rounds"


def test_steps_that_one_run_lacks_leave_nothing_to_pair() -> None:
    assert times(Throughput(step_times_s=noisy(0.1, 8)), Throughput(step_times_s=noisy(0.1, 7))) == []
