from __future__ import annotations

from harness.plan.allocations import plan_allocations
from tests.plan.helpers import expand_axes


def test_references_run_first_and_then_the_biggest_cells() -> None:
    made = expand_axes({"tp": [1, 2], "pp": [1, 4], "packing": ["sft"], "dtype": ["fp32", "bf16"]})
    (allocation,) = plan_allocations(made)
    by_id = {cell.id: cell for cell in made.cells}
    assert sorted(allocation.cells) == sorted(by_id)
    first, rest = allocation.cells[:2], allocation.cells[2:]
    assert {by_id[cell].role for cell in first} == {"reference"}
    worlds = [by_id[cell].config.layout.world_size for cell in rest]
    assert worlds == sorted(worlds, reverse=True)
    assert (allocation.nodes, allocation.ranks_per_node) == (1, 8)


def test_a_reference_that_the_matrix_holds_runs_first_too() -> None:
    made = expand_axes({"pp": [4, 1], "packing": ["sft", "unpacked"]})
    assert plan_allocations(made)[0].cells[0].startswith("tp1-pp1-cp1-unpacked-")
