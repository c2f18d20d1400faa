"""Peak memory in a rank's record, also when the rank raises: the peak explains an out-of-memory error."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from harness.core.run.records import RankRecord
from harness.node.device.placement import Device, peak_memory_bytes, peak_reserved_bytes


def record_peaks(record: RankRecord, device: Device) -> None:
    """Record the peaks since the rank started."""
    record.peak_memory_bytes = peak_memory_bytes(device)
    record.peak_reserved_bytes = peak_reserved_bytes(device)


@contextmanager
def peaks_recorded(record: RankRecord, device: Device) -> Iterator[None]:
    """Record the peaks when an exception propagates."""
    try:
        yield
    except Exception:
        record_peaks(record, device)
        raise
