from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.core.cell.config import CellConfig
from harness.core.cell.layout import Layout
from harness.core.hardware.devices import place, shown_gpus, unplaced
from harness.core.outcomes import Missing


def cell(device: str = "auto", attention: str = "auto", **layout: int) -> CellConfig:
    return CellConfig(layout=Layout(**layout), data_path="reference", device=device, attention=attention)


@pytest.mark.parametrize(
    ("requested", "gpus", "ranks", "expected"),
    [
        ("auto", 0, 2, ["cpu with gloo", "cpu with gloo"]),
        ("cpu", 8, 1, ["cpu with gloo"]),
        ("auto", 1, 1, ["cuda with nccl"]),
        ("cuda", 2, 2, ["cuda with nccl", "cuda with nccl"]),
        ("auto", 1, 2, ["cuda with gloo, 2 ranks on one GPU"] * 2),
        ("cuda", 2, 3, ["cuda with gloo, 2 ranks on one GPU", "cuda with gloo", "cuda with gloo, 2 ranks on one GPU"]),
    ],
)
def test_who_computes_where(requested: str, gpus: int, ranks: int, expected: list[str]) -> None:
    assert [str(place(requested, gpus, rank, ranks)) for rank in range(ranks)] == expected


@given(st.sampled_from(["auto", "cuda", "cpu"]), st.integers(0, 9), st.integers(1, 40))
def test_ranks_of_a_node_agree_on_device_and_back_end_and_spread_evenly(requested: str, gpus: int, ranks: int) -> None:
    if requested == "cuda" and gpus == 0:
        with pytest.raises(ValueError, match="no GPU that torch can use"):
            place(requested, gpus, 0, ranks)
        return
    places = [place(requested, gpus, rank, ranks) for rank in range(ranks)]
    assert len({(found.kind, found.backend) for found in places}) == 1
    on_gpus = places[0].kind == "cuda"
    assert on_gpus == (requested != "cpu" and gpus > 0)
    if not on_gpus:
        assert {found.index for found in places} == {None}
        return
    count = Counter(found.index for found in places)
    assert all(found.index in range(gpus) and found.sharing == count[found.index] for found in places)
    assert max(count.values()) - min(count.values()) <= 1
    assert (places[0].backend == "nccl") == (max(count.values()) == 1)


def test_ranks_may_outnumber_the_gpus_in_every_layout() -> None:
    for layout in ({}, {"tp": 2, "sp": True}, {"dp": 2, "ep": 2}, {"tp": 2, "pp": 4}):
        assert unplaced(cell(**layout), 1, 8) is None
    assert unplaced(cell(cp=4, attention="te"), 3, 4) is None


def test_a_requested_gpu_that_does_not_exist_is_missing_not_rejected() -> None:
    refused = unplaced(cell("cuda"), 0, 1)
    assert isinstance(refused, Missing)
    assert refused.reason.startswith("device is cuda, and this machine has no GPU that torch can use")


@pytest.mark.parametrize(
    ("shown", "expected"),
    [
        (None, ["0,1,2,3", "4,5,6,7"]),
        ("7,6,5,4,3,2,1,0", ["7,6,5,4", "3,2,1,0"]),
        (",".join(f"GPU-{index}" for index in range(8)), ["GPU-0,GPU-1,GPU-2,GPU-3", "GPU-4,GPU-5,GPU-6,GPU-7"]),
        (", ".join(f"MIG-{index}" for index in range(8)), ["MIG-0,MIG-1,MIG-2,MIG-3", "MIG-4,MIG-5,MIG-6,MIG-7"]),
    ],
)
def test_cells_side_by_side_on_eight_gpus_see_parts_that_share_none(shown: str | None, expected: list[str]) -> None:
    assert [shown_gpus(part, shown) for part in (range(4), range(4, 8))] == expected
    with pytest.raises(IndexError):
        shown_gpus((0, 1), "3")
