from __future__ import annotations

import pytest

from harness.core.cell.config import CellConfig
from harness.core.cell.layout import Layout
from harness.plan.jobs.cluster import ClusterProfile
from harness.plan.rules.cluster import nodes_rule

LAB = ClusterProfile(name="lab", kind="slurm", nodes=4, ranks_per_node=8)


def reason(nodes_per_cell: int = 1, **sizes: int) -> str | None:
    return nodes_rule(LAB, nodes_per_cell).predicate(CellConfig(layout=Layout(**sizes), data_path="sft"))


@pytest.mark.parametrize(
    ("nodes_per_cell", "sizes"), [(1, {}), (1, {"tp": 8}), (1, {"pp": 16}), (4, {"tp": 2, "pp": 4, "cp": 2}), (4, {})]
)
def test_ranks_that_split_evenly_over_nodes_are_allowed(nodes_per_cell: int, sizes: dict[str, int]) -> None:
    assert reason(nodes_per_cell, **sizes) is None


def test_ranks_that_do_not_split_evenly_are_rejected_with_the_arithmetic() -> None:
    assert reason(pp=9) == (
        "tp 1 x pp 9 x cp 1 x dp 1 = 9 ranks, ceil(9 / 8 ranks per node) = 2 nodes, "
        "over which the ranks do not split evenly: 9 = 4 * 2 + 1"
    )
    assert reason(4, pp=6) == (
        "tp 1 x pp 6 x cp 1 x dp 1 = 6 ranks, launch.nodes_per_cell = 4: 4 nodes, "
        "over which the ranks do not split evenly: 6 = 1 * 4 + 2"
    )


def test_more_nodes_than_a_job_may_take_are_rejected() -> None:
    assert reason(tp=8, pp=5) == (
        "tp 8 x pp 5 x cp 1 x dp 1 = 40 ranks, ceil(40 / 8 ranks per node) = 5 nodes, "
        "more than the 4 that a job of cluster lab may take"
    )
