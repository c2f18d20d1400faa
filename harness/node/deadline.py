"""The deadline of a cell. Once it has passed, nothing that a rank does changes how the cell ended.

Dumping a rank's stacks reads frames that its threads still change, and can crash it; its peers then raise. So from
the deadline on failures do not count: ranks dump their stacks, are stopped, and are killed.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from contextlib import suppress
from types import FrameType

EARLY_S = 0.2  # before the deadline, torch elastic is no longer polled: it ends all ranks as soon as one has failed
DUMP_S = 1.0  # for the dumps, before the ranks are stopped
KILL_S = 2.0  # after the deadline; nodes whose clocks differ have stopped their ranks by then


class Deadline:
    """The deadline of the ranks that this process forked, its only children. `at` in seconds since the epoch."""

    def __init__(self, at: float) -> None:
        self.at = at
        self.found: dict[int, float] = {}  # pid of a rank that still ran -> when it was found, seconds since the epoch

    def arm(self) -> None:
        """Kill the ranks KILL_S after the deadline, even if this process is blocked by then."""
        signal.signal(signal.SIGALRM, self._kill)
        signal.setitimer(signal.ITIMER_REAL, max(self.at + KILL_S - time.time(), 0.01))

    def disarm(self) -> None:
        signal.setitimer(signal.ITIMER_REAL, 0)

    @property
    def left_s(self) -> float:
        """Seconds for which a failing rank still ends the cell."""
        return self.at - EARLY_S - time.time()

    def wait(self) -> None:
        self._note()  # before the dump, which can crash a rank
        time.sleep(max(self.at - time.time(), 0))

    def end(self) -> None:
        """End all ranks: at the deadline, or before it when it has passed on another node.

        Ranks are stopped before any is killed: a rank that still ran would report the loss of its peer as a failure.
        """
        self._note()
        if time.time() < self.at:  # their own watchdogs have not fired yet
            _signal_all(signal.SIGUSR1)
        signal.setitimer(signal.ITIMER_REAL, KILL_S)
        time.sleep(DUMP_S)
        _signal_all(signal.SIGSTOP)
        for child in multiprocessing.active_children():
            child.join()

    def _note(self) -> None:
        now = time.time()
        for child in multiprocessing.active_children():
            self.found.setdefault(child.pid or 0, now)

    def _kill(self, signum: int, frame: FrameType | None) -> None:
        self._note()
        _signal_all(signal.SIGKILL)


def _signal_all(number: signal.Signals) -> None:
    for child in multiprocessing.active_children():
        with suppress(ProcessLookupError):  # it has just exited
            os.kill(child.pid or 0, number)
