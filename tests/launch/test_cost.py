from __future__ import annotations

import pytest

from harness.core.cell.config import CellConfig, ModelConfig
from harness.core.cell.layout import Layout
from harness.core.errors import InputError
from harness.launch.allocations import (
    IMPORT_S,
    cell_seconds,
    estimate,
    job_costs,
    plan_allocations,
    refuse_above,
    step_flops,
)
from harness.matrix.cluster import ClusterProfile
from harness.matrix.schema.sections import Launch
from tests.matrix.helpers import expand_axes


def test_counts_are_exact() -> None:
    made = expand_axes({"pp": [1, 2, 3, 8], "packing": "unpacked"}, train={"steps": 5}, constraints=["pp < 8"])
    cost = estimate(made, cores=2)
    assert (cost.cells, cost.rejected, cost.excluded) == (2, 1, 1)
    assert (cost.largest_world, cost.ranks, cost.rank_steps) == (2, 3, 15)


def test_more_cores_and_fewer_steps_cost_less_time() -> None:
    made = expand_axes({"pp": [2, 4], "packing": "sft"}, train={"steps": 9})
    assert estimate(made, cores=4).seconds < estimate(made, cores=1).seconds
    fewer = expand_axes({"pp": [2, 4], "packing": "sft"}, train={"steps": 1})
    assert estimate(fewer, cores=1).seconds < estimate(made, cores=1).seconds
    assert "cores: 4" in estimate(made, cores=4).basis


def test_cells_on_gpus_of_this_machine_are_not_estimated_by_its_cores() -> None:
    big = {"layers": 4, "hidden": 4096, "heads": 32, "kv_heads": 8, "ffn": 14336, "vocab": 32768}
    on_gpu, on_cpu = (
        estimate(expand_axes({"packing": "sft", "device": device}, model=big), cores=2) for device in ("cuda", "cpu")
    )
    assert on_gpu.seconds < 60 < on_cpu.seconds
    assert (on_gpu.basis, "GPU" in on_cpu.basis) == (
        "one import, 15 s per cell on GPUs and 0.2 s per step, one cell after another",
        False,
    )


def test_a_cell_that_resumes_starts_its_ranks_twice_but_trains_only_the_rest_again() -> None:
    whole, resumed = (
        estimate(
            expand_axes(
                {"tp": 2, "packing": "sft", "trainer": "megatron", "resume": value},
                train={"steps": 5, "save_step": 2},
                documents={"mode": "file", "lengths": [16, 8, 24, 4]},
            )
        )
        for value in ("", "same")
    )
    assert (resumed.cells, whole.cells) == (2, 2)
    assert resumed.ranks == whole.ranks + 2 and resumed.rank_steps == whole.rank_steps + 2 * 3
    assert resumed.seconds > whole.seconds


def test_every_stack_imports_separately_in_parallel_on_the_cores() -> None:
    stacks = {name: {"packages": ["six"]} for name in ("a", "b")}
    one, two = (
        expand_axes({"packing": "unpacked", "stack": names}, stacks={name: stacks[name] for name in names})
        for names in (["a"], ["a", "b"])
    )
    cell = estimate(one, cores=1).seconds - IMPORT_S
    assert estimate(two, cores=1).seconds == pytest.approx(2 * (IMPORT_S + cell))
    assert estimate(two, cores=2).seconds == pytest.approx(IMPORT_S + 2 * cell)
    assert estimate(two, cores=2).basis.startswith("2 imports, ")


def test_step_flops_count_six_per_parameter_and_slot() -> None:
    model = ModelConfig(layers=1, hidden=4, heads=2, kv_heads=1, ffn=8, vocab=16)
    # q and out 4 x 4, k and v 4 x 2, three feed-forward matrices 4 x 8, output layer 4 x 16.
    parameters = 2 * 16 + 2 * 8 + 3 * 32 + 64
    assert step_flops(CellConfig(layout=Layout(), data_path="sft", model=model)) == 6 * parameters * 8 * 64


GPUS = ClusterProfile(name="g", kind="slurm", nodes=2, gpus_per_node=8, ranks_per_node=8)


def test_the_upper_limit_of_cost_is_gpus_times_time_limit() -> None:
    made = expand_axes({"tp": 2, "pp": 2, "dp": [1, 4], "packing": "sft"})
    launch = Launch(time_limit_min=30)
    costs = job_costs(made, plan_allocations(made, GPUS, launch), GPUS)
    assert [(cost.array, cost.jobs, cost.nodes, cost.gpus, cost.most_gpu_hours) for cost in costs] == [
        ("1n1r", 1, 1, 1, 0.5),
        ("2n8r", 1, 2, 16, 8),
        ("1n4r", 1, 1, 4, 2),
    ]
    assert [cost.most_node_hours for cost in costs] == [0.5, 1, 0.5]
    assert all(0 < cost.gpu_hours < cost.most_gpu_hours for cost in costs)
    refuse_above(costs, 10.5, GPUS)
    with pytest.raises(InputError) as caught:
        refuse_above(costs, 10, GPUS)
    assert "--max-gpu-hours 10: the plan may cost 10.5 GPU-hours" in str(caught.value)
    assert "2n8r: 1 x 16 x 0.5 h = 8;" in str(caught.value)


def test_a_budget_of_gpu_hours_needs_gpus() -> None:
    with pytest.raises(InputError, match="cluster lab has no GPUs"):
        refuse_above((), 1, ClusterProfile(name="lab", kind="slurm"))


def test_a_cell_costs_less_on_more_cores() -> None:
    config = CellConfig(layout=Layout(tp=8), data_path="sft")
    few, many = (ClusterProfile(kind="slurm", ranks_per_node=8, cpus_per_task=cores) for cores in (1, 8))
    assert cell_seconds(config, many, 1) == pytest.approx(cell_seconds(config, few, 1) / 8)
