"""Statistics of paired times: equal distributions give no verdict, and a shift beyond the bound is caught."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.judge.stats.paired import LEVEL, PairedRatio, paired_ratio


def noisy(generator: random.Random, rounds: int, *, shift: float = 1.0, burst: float = 0.2) -> list[float]:
    """Times of a shared machine: jitter of 5 %, and a burst of up to five-fold in one of five rounds."""
    return [
        shift * generator.lognormvariate(0, 0.05) * (generator.uniform(1, 5) if generator.random() < burst else 1)
        for _ in range(rounds)
    ]


def ratio(times: list[float], base: list[float]) -> PairedRatio:
    found = paired_ratio(times, base)
    assert found is not None
    return found


@pytest.mark.parametrize("rounds", [7, 11, 21])
def test_the_same_distribution_differs_no_more_often_than_the_level(rounds: int) -> None:
    generator, repeats = random.Random(rounds), 4000
    verdicts = [ratio(noisy(generator, rounds), noisy(generator, rounds)).verdict(1.0) for _ in range(repeats)]
    wrong = sum(verdict != "no difference" for verdict in verdicts)
    assert wrong / repeats < 2 * LEVEL + 0.006  # two-sided, plus three standard errors of 4000 repeats


def test_the_same_distribution_is_never_beyond_a_bound_of_a_tenth_in_a_thousand_repeats() -> None:
    generator = random.Random(1)
    found = [ratio(noisy(generator, 11), noisy(generator, 11)) for _ in range(1000)]
    assert not [item for item in found if item.above(1.25)]


def test_a_shift_of_three_tenths_is_caught_beyond_a_bound_of_a_tenth() -> None:
    generator, repeats = random.Random(2), 300
    shifted = [
        ratio(noisy(generator, 21, shift=1.3, burst=0.1), noisy(generator, 21, burst=0.1)) for _ in range(repeats)
    ]
    assert sum(item.verdict(1.1) == "slower" for item in shifted) > 0.9 * repeats
    assert sum(abs(item.median / 1.3 - 1) < 0.1 for item in shifted) > 0.9 * repeats


@given(st.lists(st.floats(1e-4, 1e3), min_size=1, max_size=40), st.floats(0.01, 100))
def test_a_constant_factor_is_found_whatever_the_noise_that_both_share(times: list[float], factor: float) -> None:
    found = ratio([factor * time for time in times], times)
    assert found.median == pytest.approx(factor)
    assert found.rounds == len(times)
    if len(times) >= 7:
        assert (found.low, found.high) == (pytest.approx(factor), pytest.approx(factor))


@given(st.lists(st.tuples(st.floats(1e-4, 1e3), st.floats(1e-4, 1e3)), min_size=1, max_size=40))
def test_exchanging_the_sides_exchanges_slower_and_faster(pairs: list[tuple[float, float]]) -> None:
    times, base = [one for one, _ in pairs], [other for _, other in pairs]
    opposite = {"slower": "faster", "faster": "slower", "no difference": "no difference"}
    forth, back = ratio(times, base), ratio(base, times)
    for bound in (1.05, 2.0):
        if all(abs(edge / limit - 1) > 1e-9 for edge in (forth.low, forth.high) for limit in (bound, 1 / bound)):
            assert back.verdict(bound) == opposite[forth.verdict(bound)]


@given(
    st.lists(st.floats(1e-4, 1e3), min_size=1, max_size=40), st.lists(st.floats(1e-4, 1e3), min_size=40, max_size=40)
)
def test_the_median_lies_in_the_interval(times: list[float], base: list[float]) -> None:
    found = ratio(times, base)
    assert found.low <= found.median <= found.high


@pytest.mark.parametrize(("rounds", "outside"), [(6, 0), (7, 1), (10, 1), (11, 2), (14, 3), (21, 5)])
def test_the_ends_are_the_order_statistics_of_the_sign_test(rounds: int, outside: int) -> None:
    found = ratio([float(value) for value in range(1, rounds + 1)], [1.0] * rounds)
    expected = (0.0, math.inf) if not outside else (float(outside), float(rounds + 1 - outside))
    assert (found.low, found.high) == expected


def test_few_rounds_prove_nothing_however_large_the_factor() -> None:
    found = ratio([100.0] * 6, [1.0] * 6)
    assert found.median == 100
    assert found.verdict(1.1) == "no difference"


def test_one_outlier_changes_no_verdict_of_many_rounds() -> None:
    assert ratio([1.0] * 10 + [1e6], [1.0] * 11).verdict(1.1) == "no difference"
    assert ratio([3.0] * 10 + [1e-6], [1.0] * 11).verdict(1.1) == "slower"


@pytest.mark.parametrize("bad", [0.0, -1.0, math.nan, math.inf])
def test_rounds_without_a_time_do_not_count(bad: float) -> None:
    assert paired_ratio([bad], [1.0]) is None
    assert ratio([2.0, bad], [1.0, 1.0]).rounds == 1
