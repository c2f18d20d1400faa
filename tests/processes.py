"""Processes that tests start or wait for."""

from __future__ import annotations

import os
import select
import signal

HUNG_S = 3600.0  # only ends a process that hangs: on a busy machine everything takes many times as long


def await_end(pid: int, seconds: float = HUNG_S) -> None:
    """Block until the process has ended; fails if it has not ended in time."""
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    ready, _, _ = select.select([descriptor], [], [], seconds)  # readable once it has ended
    os.close(descriptor)
    assert ready, f"process {pid} has not ended within {seconds} s"


def heed_interrupts() -> None:
    """For preexec_fn: tests that a shell runs in the background ignore SIGINT, and launchers would inherit that."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
