from __future__ import annotations

import math
import random

import pytest

from harness.judge.compare import distance, fingerprint_distance, ratio_name
from harness.words.layout import Layout
from harness.words.records import Fingerprint
from harness.words.tolerances import Bound


def test_distance_is_relative_unless_the_bound_is_absolute_or_the_reference_zero() -> None:
    relative, absolute = Bound(value=1.0), Bound(value=1.0, unit="absolute")
    assert distance(3.0, 2.0, relative) == 0.5
    assert distance(3.0, 2.0, absolute) == 1.0
    assert distance(3.0, 0.0, relative) == 3.0
    assert math.isnan(distance(math.nan, 2.0, relative))


def test_fingerprint_distance_estimates_the_norm_of_the_difference() -> None:
    generator = random.Random(1)
    size, count = 300, 400
    left = [generator.gauss(0, 1) for _ in range(size)]
    right = [value + generator.gauss(0, 0.1) for value in left]
    vectors = [[generator.gauss(0, 1) for _ in range(size)] for _ in range(count)]

    def fingerprint(values: list[float]) -> Fingerprint:
        dots = [math.fsum(a * b for a, b in zip(values, vector)) for vector in vectors]
        return Fingerprint(norm_sq=math.fsum(value**2 for value in values), projections=dots)

    exact = math.dist(left, right) / math.hypot(*right)
    assert fingerprint_distance(fingerprint(left), fingerprint(right)) == pytest.approx(exact, rel=0.1)


def test_fingerprint_distance_sees_a_scale_that_projections_could_miss() -> None:
    left = Fingerprint(norm_sq=4.0, projections=[0.0, 0.0])
    right = Fingerprint(norm_sq=1.0, projections=[0.0, 0.0])
    assert fingerprint_distance(left, right) == 1.0


@pytest.mark.parametrize(
    ("ratio", "name"),
    [
        (2.0, "x cp"),
        (0.5, "x 1/cp"),
        (3.05, "x micro-batches"),
        (6.0, "x (cp micro-batches)"),
        (1.0, None),
        (1.3, None),
    ],
)
def test_ratios_are_named(ratio: float, name: str | None) -> None:
    assert ratio_name(ratio, Layout(cp=2), 3, 0.02) == name
