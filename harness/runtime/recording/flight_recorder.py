"""Dumps NCCL's flight recorder shortly before a rank's deadline, and finds in the dump what the rank was waiting for.

The recorder keeps the collectives that a process has enqueued. NCCL collectives return to the host at once, so a rank
hangs in float(loss) or torch.cuda.synchronize(), and its stack does not name the collective; the recorder does. A
thread of the rank writes the dump: the main thread of a hung rank waits for the GPU without holding the GIL.

| torch | dump | entry names its group by |
|---|---|---|
| 2.2 to 2.4 | pickle | pg_name (2.2: pg_id alone), then process_group |
| 2.5 and newer | JSON or pickle | process_group: [name, description] |

Numbers are collective_seq_id or, between two ranks, p2p_seq_id; up to 2.3 seq_id for both. In JSON, a dump without
entries lacks the key, and an unknown time is 0 instead of None (FlightRecorderDetail.hpp, format 2.10).
"""

from __future__ import annotations

import json
import pickle
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch.distributed as dist

from harness.core.run.run_dir import AttemptDir, text_of, write_atomic

EARLY_S = 1.0  # time before the deadline; the dump takes milliseconds, and the stacks are dumped at the deadline
# Functions of torch's C module that return the recorder's entries, newest first: JSON from torch 2.5 on, else pickle.
_DUMPS: tuple[tuple[str, Callable[[bytes], Any]], ...] = (
    ("_dump_nccl_trace_json", json.loads),
    ("_dump_nccl_trace", pickle.loads),  # trusted: this process wrote it
)
_ACTIVE = ("scheduled", "started")


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


def flight_file(attempt: AttemptDir, rank: int) -> Path:
    """Return the file of a rank's dump, next to its log."""
    return attempt.log(rank).with_suffix(".flight.json")


def watch(attempt: AttemptDir, rank: int, deadline_at: float) -> threading.Timer:
    """Start the timer that writes the dump; cancel it at the rank's end. `deadline_at`: seconds since the epoch."""
    timer = threading.Timer(max(deadline_at - EARLY_S - time.time(), 0.0), _write, (flight_file(attempt, rank),))
    # A rank that ends early must not wait for its timer.
    timer.daemon = True
    timer.start()
    return timer


def _write(path: Path) -> None:
    """Write the dump. Nothing without NCCL: with gloo the stack names the collective."""
    if not dist.is_initialized() or dist.get_backend() != "nccl":
        return
    import torch._C._distributed_c10d as c10d

    trace = dumped(c10d)
    if trace is not None:
        write_atomic(path, json.dumps(trace, default=str))


def dumped(c10d: Any) -> dict[str, Any] | None:
    """Dump the flight recorder with the newest API of this torch; None if it has none."""
    for name, read in _DUMPS:
        function = getattr(c10d, name, None)
        if function is not None:
            trace: dict[str, Any] = read(function())
            return trace
    return None


def pending_collectives(attempt: AttemptDir, rank: int) -> list[Collective]:
    """Return the collectives that a rank was waiting for at the deadline; empty without a complete dump."""
    try:
        trace = json.loads(text_of(flight_file(attempt, rank)))
    except (OSError, ValueError):
        return []
    return waiting(trace) if isinstance(trace, dict) else []


def waiting(trace: Mapping[str, Any]) -> list[Collective]:
    """Return the oldest incomplete collective of every group, oldest first; later ones of a group queue behind it."""
    oldest: dict[str, Collective] = {}
    for entry in sorted(
        _active_entries(trace), key=lambda entry: _whole_number(entry.get("record_id", entry.get("id")))
    ):
        collective = _collective(entry, trace)
        oldest.setdefault(collective.group, collective)
    return list(oldest.values())


def _active_entries(trace: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    entries = trace.get("entries")
    for entry in entries if isinstance(entries, list) else ():
        # NCCL's watchdog retires entries of collectives that have ended.
        if isinstance(entry, Mapping) and entry.get("state") in _ACTIVE and not entry.get("retired"):
            yield entry


def _collective(entry: Mapping[str, Any], trace: Mapping[str, Any]) -> Collective:
    p2p = bool(entry.get("is_p2p"))
    number = entry.get("p2p_seq_id" if p2p else "collective_seq_id", entry.get("seq_id"))
    sizes = entry.get("input_sizes")
    return Collective(
        name=str(entry.get("profiling_name", "unknown")).rpartition(":")[2],
        group=_group_text(entry, trace),
        number=_whole_number(number),
        sizes=tuple(
            tuple(_whole_number(dimension) for dimension in size) for size in (sizes if isinstance(sizes, list) else ())
        ),
    )


def _group_text(entry: Mapping[str, Any], trace: Mapping[str, Any]) -> str:
    """Return the group's description, or its name if it has none, and its ranks: "TENSOR_MODEL_PARALLEL_GROUP
    [0, 1]".
    """
    group = entry.get("process_group")
    name, described = (*group, "")[:2] if isinstance(group, list) and group else (entry.get("pg_name"), "")
    if name is None:
        name = entry.get("pg_id", "unknown")
    config = trace.get("pg_config")
    group_config = config.get(str(name)) if isinstance(config, Mapping) else None
    ranks = group_config.get("ranks") if isinstance(group_config, Mapping) else group_config
    shown = described if described not in ("", "undefined") else name
    return f"{shown} {ranks}" if ranks else str(shown)


def _whole_number(value: Any) -> int:
    return int(value) if isinstance(value, (int, float)) else 0
