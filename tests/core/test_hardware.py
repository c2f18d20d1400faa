from __future__ import annotations

import random
import re
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.core.cell.config import CellConfig
from harness.core.cell.layout import Layout
from harness.core.hardware import (
    DETERMINISM_VARIABLES,
    PEAK_DTYPES,
    PEAKS,
    WITHOUT_VARIABLE,
    GpuSlices,
    PeakFound,
    assigned_gpus,
    determinism_variables,
    gpus_needed,
    interface_matches,
    interface_of,
    is_deterministic_te,
    mfu,
    node_addresses,
    peak_of,
    placed_rank,
    recorded_variables,
    shown_gpus,
    unplaced,
)
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
    assert [str(placed_rank(requested, gpus, rank, ranks)) for rank in range(ranks)] == expected


@given(st.sampled_from(["auto", "cuda", "cpu"]), st.integers(0, 9), st.integers(1, 40))
def test_ranks_of_a_node_agree_on_device_and_back_end_and_spread_evenly(requested: str, gpus: int, ranks: int) -> None:
    if requested == "cuda" and gpus == 0:
        with pytest.raises(ValueError, match="no GPU that torch can use"):
            placed_rank(requested, gpus, 0, ranks)
        return
    places = [placed_rank(requested, gpus, rank, ranks) for rank in range(ranks)]
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


@pytest.mark.parametrize(
    ("device", "ranks", "total", "needed"),
    [("auto", 4, 8, 4), ("cuda", 8, 8, 8), ("cuda", 16, 8, 8), ("cpu", 4, 8, 0), ("auto", 4, 0, 0)],
)
def test_a_cell_takes_one_gpu_per_rank_or_all_there_are(device: str, ranks: int, total: int, needed: int) -> None:
    assert gpus_needed(device, ranks, total) == needed


def test_neighbours_are_preferred_and_too_few_are_refused() -> None:
    assert assigned_gpus([0, 2, 3, 5], 2) == (2, 3)
    assert assigned_gpus([0, 2, 4], 2) == (0, 2)
    assert assigned_gpus([1], 2) is None
    assert assigned_gpus([], 0) == ()


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


def test_only_untimed_cells_are_bound_to_kernels_that_repeat() -> None:
    assert determinism_variables({}, timed=False) == DETERMINISM_VARIABLES
    assert determinism_variables({}, timed=True) == {}
    assert is_deterministic_te({}, timed=False)
    assert not is_deterministic_te({}, timed=True)


def test_what_the_user_or_the_profile_says_stays() -> None:
    environment = {"NCCL_ALGO": "Tree", WITHOUT_VARIABLE: "NVTE_ALLOW_NONDETERMINISTIC_ALGO"}
    assert determinism_variables(environment, timed=False) == {"CUBLAS_WORKSPACE_CONFIG": ":4096:8"}
    assert not is_deterministic_te(environment, timed=False)
    assert is_deterministic_te({"NVTE_ALLOW_NONDETERMINISTIC_ALGO": "0"}, timed=True)


def test_what_chooses_kernels_algorithms_and_networks_is_recorded() -> None:
    environment = {"PATH": "/bin", "NVTE_DEBUG": "1", "NCCL_ALGO": "Ring", "CUBLAS_WORKSPACE_CONFIG": ":16:8"}
    assert list(recorded_variables(environment)) == ["CUBLAS_WORKSPACE_CONFIG", "NCCL_ALGO", "NVTE_DEBUG"]


@pytest.mark.parametrize(
    ("device", "tflops"),
    [
        # As torch.cuda.get_device_name() and nvidia-smi print them.
        ("NVIDIA A100-SXM4-80GB", 312),
        ("NVIDIA A100-PCIE-40GB", 312),
        ("NVIDIA H100 80GB HBM3", 989.5),
        ("NVIDIA H100 PCIe", 756.5),
        ("NVIDIA H100 NVL", 835.5),
        ("NVIDIA H200", 989.5),
        ("NVIDIA H200 NVL", 835.5),
        ("NVIDIA GH200 480GB", 990),
        ("NVIDIA B200", 2250),
        ("NVIDIA GB200", 2500),
        ("NVIDIA L40S", 362),
        ("NVIDIA L40", 181),
        ("NVIDIA L4", 121),
        ("NVIDIA A10", 125),
    ],
)
def test_names_of_devices_find_their_own_row(device: str, tflops: float) -> None:
    found = peak_of(device, "bf16")
    assert found.tflops == tflops
    assert "data sheet" in found.origin


@pytest.mark.parametrize(
    "device", ["NVIDIA H100 80GB HBM3 MIG 1g.10gb", "NVIDIA A10G", "NVIDIA A1000", "AMD Instinct MI300X"]
)
def test_a_device_that_is_not_in_the_table_has_no_peak(device: str) -> None:
    found = peak_of(device, "bf16")
    assert found.tflops is None
    assert found.origin.startswith(f"the peak of {device!r} is not in the table; state it as peak_tflops")


def test_a_peak_stated_by_the_user_overrides_the_table_for_that_dtype_alone() -> None:
    assert peak_of("NVIDIA H200", "bf16", {"bf16": 700}).tflops == 700
    assert peak_of("AMD Instinct MI300X", "bf16", {"bf16": 1307}).tflops == 1307
    assert peak_of("NVIDIA H200", "fp32", {"bf16": 700}).tflops == 67


def test_a_cpu_has_no_peak_unless_it_is_stated() -> None:
    assert peak_of("cpu", "fp32").tflops is None
    assert peak_of("cpu", "fp32", {"fp32": 0.5}).tflops == 0.5


def test_rows_are_sane() -> None:
    for row in PEAKS:
        re.compile(row.pattern)
        assert set(row.tflops) == set(PEAK_DTYPES)
        assert 0 < row.tflops["fp32"] < row.tflops["bf16"] < 5000
        assert row.origin


def test_mfu_is_a_share_of_the_peak_and_absent_without_one() -> None:
    assert mfu(400.0, PeakFound(tflops=1000.0, origin="")) == pytest.approx(0.4)
    assert mfu(400.0, PeakFound(tflops=None, origin="why")) is None
    assert mfu(None, PeakFound(tflops=1000.0, origin="")) is None


NODE = {
    "lo": ["127.0.0.1", "::1"],
    "docker0": ["172.17.0.1"],
    "eth0": ["10.1.0.7", "2001:db8::7"],
    "ib0": ["192.168.5.7"],
}
DEBIAN = ["127.0.1.1"]  # what the host's own name resolves to with a Debian-style hosts file


@pytest.mark.parametrize(
    ("named", "wanted", "expected"),
    [
        (DEBIAN, "", ["10.1.0.7", "192.168.5.7", "2001:db8::7"]),
        (["192.168.5.7"], "", ["192.168.5.7", "10.1.0.7", "2001:db8::7"]),
        (DEBIAN, "ib", ["192.168.5.7"]),
        (DEBIAN, "=ib", ["10.1.0.7", "192.168.5.7", "2001:db8::7"]),
        (["10.1.0.7"], "=ib0,ib1", ["192.168.5.7"]),
        (["10.1.0.7"], "^eth,docker", ["192.168.5.7"]),
        (["203.0.113.9"], "", ["10.1.0.7", "192.168.5.7", "203.0.113.9", "2001:db8::7"]),
        ([], "", ["10.1.0.7", "192.168.5.7", "2001:db8::7"]),
        (DEBIAN, "docker", ["172.17.0.1"]),
    ],
)
def test_other_nodes_get_no_loopback_address(named: list[str], wanted: str, expected: list[str]) -> None:
    assert node_addresses(NODE, named, wanted) == expected


def test_a_machine_without_a_network_has_its_loopback() -> None:
    assert node_addresses({"lo": ["127.0.0.1"]}, DEBIAN) == ["127.0.0.1"]


@pytest.mark.parametrize(
    ("wanted", "taken"),
    [
        ("eth", {"eth0", "eth1"}),
        ("eth0,ib", {"eth0", "ib0"}),
        ("=eth", set()),
        ("=eth1", {"eth1"}),
        ("^eth0", {"eth1", "ib0"}),
        ("^=eth", {"eth0", "eth1", "ib0"}),
    ],
)
def test_names_are_read_as_nccl_reads_them(wanted: str, taken: set[str]) -> None:
    assert {name for name in ("eth0", "eth1", "ib0") if interface_matches(name, wanted)} == taken


def test_an_address_has_its_interface() -> None:
    assert (interface_of("192.168.5.7", NODE), interface_of("8.8.8.8", NODE)) == ("ib0", None)
