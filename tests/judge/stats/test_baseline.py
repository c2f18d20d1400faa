from __future__ import annotations

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.core.tolerances import MIN_RUNS
from harness.judge.stats.baseline import Sample, compare, hardware_text

TIMES = st.lists(st.floats(1e-4, 1e3), min_size=MIN_RUNS, max_size=12)


def samples(values: list[float]) -> list[Sample]:
    return [
        Sample(run_id=f"r{number}", started="2026-08-01T00:00:00Z", seconds=one) for number, one in enumerate(values)
    ]


def test_too_few_runs_are_no_baseline() -> None:
    assert compare(1.0, samples([1.0] * (MIN_RUNS - 1))) is None
    assert compare(1.0, samples([1.0] * MIN_RUNS)) is not None


def test_median_and_mad_are_those_of_the_samples() -> None:
    found = compare(1.5, samples([1.0, 1.1, 0.9, 1.2, 9.0]))
    assert found is not None
    distances = sorted(abs(math.log(value / 1.1)) for value in (1.0, 1.1, 0.9, 1.2, 9.0))
    assert (found.median, found.mad) == (1.1, pytest.approx(distances[2]))
    assert found.z == pytest.approx(math.log(1.5 / 1.1) / (1.4826 * distances[2]))
    assert (found.ratio, found.low, found.high) == (pytest.approx(1.5 / 1.1), 1.5 / 9.0, 1.5 / 0.9)


@pytest.mark.parametrize(
    ("seconds", "earlier", "slower"),
    [
        (1.5, [1.0, 1.01, 0.99, 1.0, 1.02] * 2, True),
        (1.1, [1.0] * 50, False),  # 9.5 deviations, beyond the 4.6 needed, but 1.1 times is within the bound
        (1.5, [1.0, 1.01, 0.99, 1.0, 1.02], False),  # 27 deviations, but five runs need 101
        (1.5, [1.0, 1.2, 0.8, 1.3, 0.7] * 2, False),  # 1.5 times, but within the noise
        (1.5, [1.0, 1.01, 0.99, 1.0, 1.6] * 2, False),  # slower ones have occurred
        (0.5, [1.0, 1.01, 0.99, 1.0, 1.02] * 2, False),
    ],
)
def test_slower_is_large_and_beyond_the_noise_and_never_seen(
    seconds: float, earlier: list[float], slower: bool
) -> None:
    found = compare(seconds, samples(earlier))
    assert found is not None
    assert found.slower(1.15) is slower


@given(TIMES, st.floats(1e-4, 1e3), st.floats(0.1, 10.0))
def test_the_verdict_does_not_depend_on_the_unit_or_the_order(times: list[float], seconds: float, scale: float) -> None:
    one, other = (
        compare(seconds, samples(times)),
        compare(seconds * scale, samples([t * scale for t in reversed(times)])),
    )
    assert one is not None and other is not None
    assert one.ratio == pytest.approx(other.ratio) and one.z == pytest.approx(other.z, rel=1e-6, abs=1e-6)


@given(TIMES)
def test_none_of_the_samples_is_slower_than_themselves(times: list[float]) -> None:
    for time in times:
        found = compare(time, samples(times))
        assert found is not None and not found.slower(1.15)


@pytest.mark.parametrize("runs", [5, 7, 10, 20])
@pytest.mark.parametrize("noise", [0.05, 0.3])
def test_equal_code_on_a_noisy_machine_is_hardly_ever_slower(noise: float, runs: int) -> None:
    chance = random.Random(11)
    alarms = 0
    for _ in range(10_000):
        *earlier, now = (chance.lognormvariate(0, noise) for _ in range(runs + 1))
        found = compare(now, samples(earlier))
        alarms += found is not None and found.slower(1.15)
    assert alarms <= 5  # of 10,000 nights; one is expected


@pytest.mark.parametrize(("runs", "factor"), [(10, 1.6), (20, 1.3)])
def test_a_longer_step_is_found_on_a_machine_that_varies_by_3_percent(runs: int, factor: float) -> None:
    chance = random.Random(11)
    found = 0
    for _ in range(1000):
        *earlier, now = (chance.lognormvariate(0, 0.03) for _ in range(runs + 1))
        compared = compare(factor * now, samples(earlier))
        found += compared is not None and compared.slower(1.15)
    assert found > 800


def test_hardware_is_the_gpus_and_in_place_of_cpu_the_processors() -> None:
    assert hardware_text(["cpu"], ["EPYC x 8"]) == "EPYC x 8"
    assert hardware_text(["NVIDIA H200"], ["EPYC x 8"]) == "NVIDIA H200"
    assert hardware_text(["cpu"], []) == "cpu"
    assert hardware_text([], []) == "unknown"
