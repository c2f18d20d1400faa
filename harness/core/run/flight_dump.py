"""Finds the collectives that a rank was waiting for in a dump of torch's flight recorder. Pure.

The recorder keeps the collectives that a process has enqueued. NCCL collectives return to the host at once, so a rank
hangs in float(loss) or torch.cuda.synchronize(), and its stack does not name the collective; the recorder does.

| torch | dump | entry names its group by |
|---|---|---|
| 2.2 to 2.4 | pickle | pg_name (2.2: pg_id alone), then process_group |
| 2.5 and newer | JSON or pickle | process_group: [name, description] |

Numbers are collective_seq_id or, between two ranks, p2p_seq_id; up to 2.3 seq_id for both. In JSON, a dump without
entries lacks the key, and an unknown time is 0 instead of None (FlightRecorderDetail.hpp, format 2.10).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

ACTIVE = ("scheduled", "started")


@dataclass(frozen=True, kw_only=True)
class Collective:
    """One entry of a dump; equal on all ranks that wait in the same collective."""

    name: str  # e.g. all_reduce, or "recv 1<-0" between two ranks
    group: str
    number: int  # sequence number in the group
    sizes: tuple[tuple[int, ...], ...]  # of the inputs

    def __str__(self) -> str:
        shapes = ", ".join("x".join(map(str, size)) or "scalar" for size in self.sizes)
        return f"{self.name} number {self.number} of group {self.group}, inputs {shapes or 'none'}"


def waiting(trace: Mapping[str, Any]) -> list[Collective]:
    """The oldest incomplete collective of every group, oldest first; later ones of a group queue behind it."""
    found: dict[str, Collective] = {}
    for entry in sorted(_active(trace), key=lambda entry: _int(entry.get("record_id", entry.get("id")))):
        made = _collective(entry, trace)
        found.setdefault(made.group, made)
    return list(found.values())


def _active(trace: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    entries = trace.get("entries")
    for entry in entries if isinstance(entries, list) else ():
        if isinstance(entry, Mapping) and entry.get("state") in ACTIVE and not entry.get("retired"):
            yield entry


def _collective(entry: Mapping[str, Any], trace: Mapping[str, Any]) -> Collective:
    p2p = bool(entry.get("is_p2p"))
    number = entry.get("p2p_seq_id" if p2p else "collective_seq_id", entry.get("seq_id"))
    sizes = entry.get("input_sizes")
    return Collective(
        name=str(entry.get("profiling_name", "unknown")).rpartition(":")[2],
        group=_group(entry, trace),
        number=_int(number),
        sizes=tuple(tuple(_int(one) for one in size) for size in (sizes if isinstance(sizes, list) else ())),
    )


def _group(entry: Mapping[str, Any], trace: Mapping[str, Any]) -> str:
    """The group's description, or its name if it has none, and its ranks: "TENSOR_MODEL_PARALLEL_GROUP [0, 1]"."""
    group = entry.get("process_group")
    name, described = (*group, "")[:2] if isinstance(group, list) and group else (entry.get("pg_name"), "")
    if name is None:
        name = entry.get("pg_id", "unknown")
    config = trace.get("pg_config")
    known = config.get(str(name)) if isinstance(config, Mapping) else None
    ranks = known.get("ranks") if isinstance(known, Mapping) else known
    shown = described if described not in ("", "undefined") else name
    return f"{shown} {ranks}" if ranks else str(shown)


def _int(value: Any) -> int:
    return int(value) if isinstance(value, (int, float)) else 0
