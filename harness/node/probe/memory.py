"""Peaks of memory in a rank's record, also of a rank that raises: what it tried then stands in the exception."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from harness.core.run.records import RankRecord
from harness.node.device.placement import Device, peak_memory_bytes, peak_reserved_bytes


def note_peaks(record: RankRecord, device: Device) -> None:
    """Peaks since the rank began."""
    record.peak_memory_bytes = peak_memory_bytes(device)
    record.peak_reserved_bytes = peak_reserved_bytes(device)


@contextmanager
def peaks_noted(record: RankRecord, device: Device) -> Iterator[None]:
    """Note the peaks when an exception passes through."""
    try:
        yield
    except Exception:
        note_peaks(record, device)
        raise
