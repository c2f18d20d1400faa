"""Out-of-memory failures: the size of the allocation that failed, and the memory available."""

from __future__ import annotations

import re
from collections.abc import Iterable

from harness.core.run.records import Failure, RankRecord
from harness.judge.failures.blame import pattern_of_exception
from harness.judge.failures.patterns import GPU_MEMORY, HOST_MEMORY

UNITS = {"bytes": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30}
# torch 2.x: "CUDA out of memory. Tried to allocate 20.00 GiB."; on the CPU: "you tried to allocate 4096 bytes."
_TRIED = re.compile(r"tried to allocate ([0-9.]+) (bytes|KiB|MiB|GiB)\b", re.I)


def out_of_memory(failure: Failure | None) -> bool:
    """Whether a rank raised because its device, or its share of the machine, had no memory left."""
    if failure is None:
        return False
    return pattern_of_exception(failure.type, failure.message) in (GPU_MEMORY, HOST_MEMORY)


def tried_bytes(message: str) -> int | None:
    """The size of the allocation that failed; None if the message does not contain it."""
    found = _TRIED.search(message)
    return round(float(found[1]) * UNITS[found[2]]) if found else None


def memory_limit(records: Iterable[RankRecord]) -> int | None:
    """The smallest memory limit of any rank, in bytes; None if no rank recorded one."""
    limits = [record.environment.get("memory_limit_bytes", "") for record in records]
    return min((int(limit) for limit in limits if limit), default=None)


def memory_text(record: RankRecord) -> str:
    """Text such as "tried to allocate 20 GiB in one piece; peak 100 GiB, 103 GiB reserved, of 139 GiB"."""
    tried = tried_bytes(record.failure.message) if record.failure else None
    parts = [f"tried to allocate {size_text(tried)} in one piece"] if tried is not None else []
    held = f"peak {size_text(record.peak_memory_bytes)}" if record.peak_memory_bytes else ""
    if record.peak_reserved_bytes:
        held += f", {size_text(record.peak_reserved_bytes)} reserved"
    limit = memory_limit([record])
    held += f", of {size_text(limit)}" if limit and held else ""
    return "; ".join([*parts, held] if held else parts)


def size_text(count: float) -> str:
    """A size in the largest unit that it reaches: 20 GiB, 1.5 MiB."""
    for unit in ("GiB", "MiB", "KiB"):
        if count >= UNITS[unit]:
            return f"{count / UNITS[unit]:.4g} {unit}"
    return f"{count:g} bytes"
