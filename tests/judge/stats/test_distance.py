from __future__ import annotations

import math
import random

import pytest

from harness.core.run.tensor_records import Fingerprint
from harness.core.tolerances import Bound
from harness.judge.stats.distance import distance, fingerprint_distance


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


def test_a_direction_ignores_the_other_side() -> None:
    above, below = Bound(value=0.1, direction="above"), Bound(value=0.1, direction="below")
    assert [distance(value, 2.0, above) for value in (3.0, 1.0)] == [0.5, 0.0]
    assert [distance(value, 2.0, below) for value in (3.0, 1.0)] == [0.0, 0.5]
    assert math.isnan(distance(math.nan, 2.0, above))


def test_an_absolute_bound_of_fingerprints_is_not_divided_by_the_norm() -> None:
    left = Fingerprint(norm_sq=25.0, projections=[1.0])
    right = Fingerprint(norm_sq=16.0, projections=[1.0])
    assert fingerprint_distance(left, right) == 0.25
    assert fingerprint_distance(left, right, Bound(value=1.0, unit="absolute")) == 1.0
