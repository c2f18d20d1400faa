"""The benchmarks that start a cluster measure something at their smallest size."""

from __future__ import annotations

import pytest

from tests.benchmarks.smallest import ON_A_CLUSTER, assert_measures

pytestmark = [pytest.mark.slurm, pytest.mark.train, pytest.mark.long]  # short: start in test_every_benchmark.py


@pytest.mark.usefixtures("may_run_slurm")
@pytest.mark.parametrize("name", ON_A_CLUSTER)
def test_a_benchmark_measures_at_its_smallest_size(name: str) -> None:
    assert_measures(name)
