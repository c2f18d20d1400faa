"""Peaks by device name, and the share of them in use."""

from __future__ import annotations

import re

import pytest

from harness.core.hardware.peak_flops import DTYPES, PEAKS, PeakFound, mfu, peak_of


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
        assert set(row.tflops) == set(DTYPES)
        assert 0 < row.tflops["fp32"] < row.tflops["bf16"] < 5000
        assert row.origin


def test_mfu_is_a_share_of_the_peak_and_absent_without_one() -> None:
    assert mfu(400.0, PeakFound(tflops=1000.0, origin="")) == pytest.approx(0.4)
    assert mfu(400.0, PeakFound(tflops=None, origin="why")) is None
    assert mfu(None, PeakFound(tflops=1000.0, origin="")) is None
