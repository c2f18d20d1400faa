from __future__ import annotations

import random

import pytest

from harness.core.hardware.gpu_slices import GpuSlices, assign, gpus_needed


@pytest.mark.parametrize(
    ("device", "ranks", "total", "needed"),
    [("auto", 4, 8, 4), ("cuda", 8, 8, 8), ("cuda", 16, 8, 8), ("cpu", 4, 8, 0), ("auto", 4, 0, 0)],
)
def test_a_cell_takes_one_gpu_per_rank_or_all_there_are(device: str, ranks: int, total: int, needed: int) -> None:
    assert gpus_needed(device, ranks, total) == needed


def test_neighbours_are_preferred_and_too_few_are_refused() -> None:
    assert assign([0, 2, 3, 5], 2) == (2, 3)
    assert assign([0, 2, 4], 2) == (0, 2)
    assert assign([1], 2) is None
    assert assign([], 0) == ()


def test_cells_on_a_node_of_eight_gpus_run_side_by_side_on_gpus_of_their_own() -> None:
    node = GpuSlices(8)
    assert node.take("a", "cuda", 4) == (0, 1, 2, 3)
    assert node.take("b", "auto", 2) == (4, 5)
    assert not node.fits("cuda", 4)
    assert node.take("c", "cpu", 4) == ()  # it must see no GPU that another cell holds
    assert node.take("d", "cuda", 2) == (6, 7)
    with pytest.raises(ValueError, match="too few free GPUs for e"):
        node.take("e", "cuda", 1)
    node.release("a")
    assert node.take("e", "cuda", 4) == (0, 1, 2, 3)


def test_no_gpu_is_ever_held_twice_in_any_order_of_cells() -> None:
    generator = random.Random(7)
    node = GpuSlices(8)
    for number in range(2000):
        ranks = generator.choice((1, 2, 3, 4, 8, 16))
        if node.fits("cuda", ranks):
            taken = node.take(f"cell-{number}", "cuda", ranks)
            assert taken is not None
            assert len(taken) == min(ranks, 8)
        elif node.held:
            node.release(generator.choice(sorted(node.held)))
        held = [index for part in node.held.values() for index in part]
        assert len(held) == len(set(held)) <= 8


def test_a_node_without_gpus_restricts_nothing() -> None:
    node = GpuSlices(0)
    assert node.fits("auto", 64)
    assert node.take("a", "auto", 64) is None
