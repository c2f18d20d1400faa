from __future__ import annotations

from harness.plan.cost import estimate, step_flops
from harness.words.cell import CellConfig, ModelConfig
from harness.words.layout import Layout
from tests.plan.helpers import expand_axes


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


def test_step_flops_count_six_per_parameter_and_slot() -> None:
    model = ModelConfig(layers=1, hidden=4, heads=2, kv_heads=1, ffn=8, vocab=16)
    # q and out 4 x 4, k and v 4 x 2, three feed-forward matrices 4 x 8, output layer 4 x 16.
    parameters = 2 * 16 + 2 * 8 + 3 * 32 + 64
    assert step_flops(CellConfig(layout=Layout(), data_path="sft", model=model)) == 6 * parameters * 8 * 64
