from __future__ import annotations

from harness.launch.allocations import IMPORT_S, arrays, cell_seconds, plan_allocations
from harness.matrix.cluster import ClusterProfile
from harness.matrix.schema.sections import Launch
from tests.matrix.helpers import expand_axes


def test_controls_run_first_then_the_largest_cells() -> None:
    made = expand_axes({"tp": [1, 2], "pp": [1, 4], "packing": ["sft"], "dtype": ["fp32", "bf16"]})
    (allocation,) = plan_allocations(made)
    by_id = {cell.id: cell for cell in made.cells}
    assert sorted(allocation.cells) == sorted(by_id)
    first, rest = allocation.cells[:2], allocation.cells[2:]
    assert {by_id[cell].role for cell in first} == {"control"}
    worlds = [by_id[cell].config.layout.world_size for cell in rest]
    assert worlds == sorted(worlds, reverse=True)
    assert (allocation.nodes, allocation.ranks_per_node) == (1, 8)


def test_a_control_in_the_matrix_runs_first_too() -> None:
    made = expand_axes({"pp": [4, 1], "packing": ["sft", "unpacked"]})
    assert plan_allocations(made)[0].cells[0].startswith("tp1-pp1-cp1-unpacked-")


LAB = ClusterProfile(name="lab", kind="slurm", nodes=4, ranks_per_node=8, time=60)


def test_a_cluster_has_one_array_per_shape_and_controls_run_first() -> None:
    made = expand_axes({"tp": 2, "pp": [2, 4], "cp": [1, 2], "packing": ["sft", "reference"]})
    planned = plan_allocations(made, LAB)
    assert [(a.name, a.array, a.index, a.nodes, a.ranks_per_node, len(a.cells)) for a in planned] == [
        ("1n1r-0", "1n1r", 0, 1, 1, 1),
        ("2n8r-0", "2n8r", 0, 2, 8, 2),
        ("1n8r-0", "1n8r", 0, 1, 8, 4),
        ("1n4r-0", "1n4r", 0, 1, 4, 2),
    ]
    assert sorted(cell for a in planned for cell in a.cells) == sorted(cell.id for cell in made.cells)
    assert {a.time_limit_min for a in planned} == {60}


def test_a_cell_of_16_ranks_spreads_over_four_nodes_when_asked() -> None:
    made = expand_axes({"tp": 2, "pp": 4, "cp": 2, "packing": "sft"})
    planned = plan_allocations(made, LAB, Launch(nodes_per_cell=4))
    assert [(a.array, a.nodes, a.ranks_per_node) for a in planned] == [("1n1r", 1, 1), ("4n4r", 4, 4)]


def test_a_job_runs_as_many_cells_as_the_matrix_says() -> None:
    made = expand_axes({"tp": 2, "micro_batch_size": [1, 2], "packing": ["sft", "reference"], "dp": [1, 2]})
    planned = plan_allocations(made, LAB, Launch(cells_per_allocation=3))
    assert [(a.name, len(a.cells)) for a in planned] == [("1n1r-0", 1), ("1n4r-0", 3), ("1n4r-1", 1), ("1n2r-0", 3),
                                                         ("1n2r-1", 1)]  # fmt: skip


def test_a_job_is_filled_to_half_of_its_time_limit() -> None:
    made = expand_axes({"tp": 2, "packing": ["sft", "reference"], "train.lr": [n / 1e4 for n in range(1, 121)]})
    long, short = (plan_allocations(made, LAB, Launch(time_limit_min=minutes)) for minutes in (60, 1))
    assert len(arrays(long)["1n2r"]) == 1
    members = arrays(short)["1n2r"]
    assert len(members) > 1
    configs = {cell.id: cell.config for cell in made.cells}
    seconds = [IMPORT_S + sum(cell_seconds(configs[cell], LAB, 1) for cell in member.cells) for member in members]
    assert all(20 < spent <= 30 for spent in seconds[:-1])
    assert seconds[-1] <= 30


def test_a_cell_that_exceeds_the_time_limit_gets_its_own_job() -> None:
    made = expand_axes({"tp": 2, "packing": ["sft", "reference"]}, train={"steps": 8000})
    assert [len(a.cells) for a in plan_allocations(made, LAB, Launch(time_limit_min=1))] == [1, 1, 1]


def test_an_array_holds_at_most_1000_members() -> None:
    made = expand_axes({"tp": 2, "packing": "sft", "train.lr": [n / 1e6 for n in range(1, 1003)]})
    planned = arrays(plan_allocations(made, LAB, Launch(cells_per_allocation=1)))
    assert {name: len(members) for name, members in planned.items()} == {
        "1n1r": 1000,
        "1n1r.2": 2,
        "1n2r": 1000,
        "1n2r.2": 2,
    }
    assert [a.name for a in planned["1n2r.2"]] == ["1n2r.2-0", "1n2r.2-1"]
