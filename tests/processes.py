"""Processes that tests start or wait for."""

from __future__ import annotations

import os
import select
import signal


def await_end(pid: int, seconds: float = 60) -> None:
    """Block until the process has ended; fails when it has not within the time."""
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    ready, _, _ = select.select([descriptor], [], [], seconds)  # readable once it has ended
    os.close(descriptor)
    assert ready, f"process {pid} has not ended within {seconds} s"


def heed_interrupts() -> None:
    """For preexec_fn: a test run that a shell started in the background ignores SIGINT, and so would its launchers."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
