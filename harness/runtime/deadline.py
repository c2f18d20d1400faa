"""The deadline of a cell. Once it has passed, nothing that a rank does changes how the cell ended.

A stack dump reads frames that the rank's threads still change, and can crash the rank; its peers then raise. So
failures after the deadline do not count: ranks dump their stacks, are stopped, and are killed.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from contextlib import suppress
from types import FrameType

EARLY_S = 0.2  # polling torch elastic, which ends all ranks once one has failed, stops this long before the deadline
DUMP_S = 1.0  # time for the stack dumps before the ranks are stopped
KILL_S = 2.0  # from the deadline to the kill; by then nodes whose clocks differ have stopped their ranks too

# Has a rank dump its stacks. Not SIGUSR1 or SIGUSR2, with which Slurm announces the end of a job to every process.
DUMP = int(signal.SIGRTMIN)


class Deadline:
    """The deadline (`at`, seconds since the epoch) of the ranks that this process forked, its only children."""

    def __init__(self, at: float) -> None:
        self.at = at
        self.found: dict[int, float] = {}  # pid of a rank still running -> when that was seen, seconds since the epoch

    def arm(self) -> None:
        """Kill the ranks KILL_S after the deadline, even if this process is blocked by then."""
        # An alarm reaches this process even while it waits in elastic; a thread would have to be forked around.
        signal.signal(signal.SIGALRM, self._kill)
        signal.setitimer(signal.ITIMER_REAL, max(self.at + KILL_S - time.time(), 0.01))

    def disarm(self) -> None:
        """Cancel what `arm` set."""
        signal.setitimer(signal.ITIMER_REAL, 0)

    @property
    def left_s(self) -> float:
        """Seconds during which the failure of a rank still ends the cell."""
        return self.at - EARLY_S - time.time()

    def wait(self) -> None:
        """Wait for the deadline, after noting that it has passed."""
        self._note()  # before the dump, which can crash a rank
        time.sleep(max(self.at - time.time(), 0))

    def end(self) -> None:
        """End all ranks: at the deadline, or earlier when it has passed on another node.

        All ranks are stopped before any is killed: a running rank would report the loss of its peer as a failure.
        """
        self._note()
        if time.time() < self.at:  # the ranks' own watchdogs have not fired yet
            _signal_all(DUMP)
        # Again, since `end` may come before the deadline for which `arm` set it.
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


def _signal_all(number: int) -> None:
    for child in multiprocessing.active_children():
        with suppress(ProcessLookupError):  # the rank has just exited
            os.kill(child.pid or 0, number)
