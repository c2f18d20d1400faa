"""Dumps NCCL's flight recorder shortly before a rank's deadline, and reads the dump afterwards.

A thread of the rank writes the dump: the main thread of a hung rank waits for the GPU without holding the GIL. The
format: harness/core/run/flight_dump.py.
"""

from __future__ import annotations

import json
import pickle
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch.distributed as dist

from harness.core.run.flight_dump import Collective, waiting
from harness.core.run.run_dir import AttemptDir, text_of, write_atomic

EARLY_S = 1.0  # time before the deadline; the dump takes milliseconds, and the stacks are dumped at the deadline
# Functions of torch's C module that return the recorder's entries, newest first: JSON from torch 2.5 on, else pickle.
_DUMPS: tuple[tuple[str, Callable[[bytes], Any]], ...] = (
    ("_dump_nccl_trace_json", json.loads),
    ("_dump_nccl_trace", pickle.loads),  # trusted: this process wrote it
)


def flight_file(attempt: AttemptDir, rank: int) -> Path:
    return attempt.log(rank).with_suffix(".flight.json")


def watch(attempt: AttemptDir, rank: int, deadline_at: float) -> threading.Timer:
    """Start the timer that writes the dump; cancel it at the rank's end. `deadline_at`: seconds since the epoch."""
    timer = threading.Timer(max(deadline_at - EARLY_S - time.time(), 0.0), _write, (flight_file(attempt, rank),))
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
    """The recorder's complete dump, from the newest function that this torch has; None when torch has none."""
    for name, read in _DUMPS:
        function = getattr(c10d, name, None)
        if function is not None:
            trace: dict[str, Any] = read(function())
            return trace
    return None


def pending_collectives(attempt: AttemptDir, rank: int) -> list[Collective]:
    """The collectives that a rank was waiting for at the deadline; empty without a complete dump."""
    try:
        trace = json.loads(text_of(flight_file(attempt, rank)))
    except (OSError, ValueError):
        return []
    return waiting(trace) if isinstance(trace, dict) else []
