"""Peak FLOP/s of GPUs by device name and dtype, from the vendor's data sheets, and the share of them in use (MFU).

Dense rates: data sheets state tensor core rates with sparsity, twice as high, and halve them in a footnote. fp32 rates
are those without tensor cores, since torch by default multiplies fp32 without TF32.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

DTYPES = ("bf16", "fp32")


@dataclass(frozen=True, kw_only=True)
class Peak:
    """Peak rates of a device; `pattern` matches the start of torch.cuda.get_device_name() without "NVIDIA "."""

    pattern: str
    tflops: Mapping[str, float]  # dtype -> 1e12 operations per second
    origin: str


# The first matching row counts, so narrower patterns come first.
PEAKS: tuple[Peak, ...] = (
    Peak(pattern=r"GB200\b", tflops={"bf16": 2500, "fp32": 80}, origin="GB200 NVL72 data sheet, one GPU"),
    Peak(pattern=r"B200\b", tflops={"bf16": 2250, "fp32": 75}, origin="HGX B200 data sheet, one GPU"),
    Peak(pattern=r"GH200\b", tflops={"bf16": 990, "fp32": 67}, origin="GH200 data sheet"),
    Peak(pattern=r"H200 NVL\b", tflops={"bf16": 835.5, "fp32": 60}, origin="H200 data sheet, NVL"),
    Peak(pattern=r"H200\b", tflops={"bf16": 989.5, "fp32": 67}, origin="H200 data sheet, SXM"),
    Peak(pattern=r"H100 NVL\b", tflops={"bf16": 835.5, "fp32": 60}, origin="H100 data sheet, NVL"),
    Peak(pattern=r"H100 PCIe\b", tflops={"bf16": 756.5, "fp32": 51}, origin="H100 data sheet, PCIe"),
    Peak(pattern=r"H100\b.*HBM3", tflops={"bf16": 989.5, "fp32": 67}, origin="H100 data sheet, SXM"),
    Peak(pattern=r"A100\b", tflops={"bf16": 312, "fp32": 19.5}, origin="A100 data sheet, PCIe and SXM alike"),
    Peak(pattern=r"A30\b", tflops={"bf16": 165, "fp32": 10.3}, origin="A30 data sheet"),
    Peak(pattern=r"A10\b", tflops={"bf16": 125, "fp32": 31.2}, origin="A10 data sheet"),
    Peak(pattern=r"L40S\b", tflops={"bf16": 362, "fp32": 91.6}, origin="L40S data sheet"),
    Peak(pattern=r"L40\b", tflops={"bf16": 181, "fp32": 90.5}, origin="L40 data sheet"),
    Peak(pattern=r"L4\b", tflops={"bf16": 121, "fp32": 30.3}, origin="L4 data sheet"),
)


@dataclass(frozen=True, kw_only=True)
class PeakFound:
    """The peak of a device; `tflops` is None if none is known, and `origin` says why."""

    tflops: float | None
    origin: str


def peak_of(device: str, dtype: str, stated: Mapping[str, float] | None = None) -> PeakFound:
    """The peak for a dtype of a device, as torch names it. A value stated by the user overrides the table."""
    if stated and dtype in stated:
        return PeakFound(tflops=stated[dtype], origin="stated by the matrix or the cluster profile")
    if device in ("", "cpu"):
        return PeakFound(tflops=None, origin="ranks on a CPU have no peak in the table")
    name = device.removeprefix("NVIDIA ")
    row = next((row for row in PEAKS if re.match(row.pattern, name)), None)
    if row is None or " MIG " in name:  # a MIG slice reaches only a share of the GPU's peak
        where = "peak_tflops of checks.throughput or of the cluster profile"
        return PeakFound(tflops=None, origin=f"the peak of {device!r} is not in the table; state it as {where}")
    if dtype not in row.tflops:
        return PeakFound(tflops=None, origin=f"the table has no {dtype} peak of {device!r}")
    return PeakFound(tflops=row.tflops[dtype], origin=row.origin)


def mfu(tflops_per_s: float | None, peak: PeakFound) -> float | None:
    """Model FLOPs utilisation: FLOP/s that the model needs for its real tokens, over the device's peak."""
    return tflops_per_s / peak.tflops if tflops_per_s is not None and peak.tflops else None
