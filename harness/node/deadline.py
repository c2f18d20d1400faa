"""The end of a cell's time. Once it has come, nothing that a rank does changes how the cell ended.

The dump of a rank's stacks reads frames that its threads go on changing, and can crash it; its peers then raise. So
from then on nobody waits for failures: ranks dump, are stopped, are killed.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from contextlib import suppress
from types import FrameType

EARLY_S = 0.2  # before the deadline torch elastic is asked no more: it ends all ranks as soon as one has failed
DUMP_S = 1.0  # for the dumps, before the ranks are stopped
KILL_S = 2.0  # after the deadline; nodes whose clocks differ have stopped their ranks by then


class Deadline:
    """The deadline of the ranks that this process forked, its only children. `at` in seconds since the epoch."""

    def __init__(self, at: float) -> None:
        self.at = at
        self.found: dict[int, float] = {}  # pid of a rank that still ran -> when it was found, seconds since the epoch

    def arm(self) -> None:
        """Have the ranks killed after the deadline whatever this process is waiting for."""
        signal.signal(signal.SIGALRM, self._kill)
        signal.setitimer(signal.ITIMER_REAL, max(self.at + KILL_S - time.time(), 0.01))

    def disarm(self) -> None:
        signal.setitimer(signal.ITIMER_REAL, 0)

    @property
    def left_s(self) -> float:
        """For how long ranks that fail end the cell."""
        return self.at - EARLY_S - time.time()

    def wait(self) -> None:
        self._note()  # now: the dump at the deadline can crash a rank, which then ended at the deadline too
        time.sleep(max(self.at - time.time(), 0))

    def end(self) -> None:
        """Hold the ranks until they are dead: at the deadline, or before it when another node's clock says so.

        A rank that still ran when another was killed would say that it lost its peer; hence the stop.
        """
        self._note()
        if time.time() < self.at:  # then they have not dumped by themselves
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
        with suppress(ProcessLookupError):  # it has just ended
            os.kill(child.pid or 0, number)
