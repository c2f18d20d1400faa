"""How much longer work takes on this node because other processes use its cores.

Linux counts in /proc/<pid>/schedstat how long a process ran and how long it was ready to run but had to wait for a
core, both in nanoseconds (Documentation/scheduler/sched-stats.rst). Waiting for a disk or a network does not count.
"""

from __future__ import annotations

from pathlib import Path

from harness.core.run.records import MAX_CONTENTION

_SCHEDSTAT = Path("/proc/self/schedstat")
_SHORTEST_NS = 50_000_000  # time on a core that is enough to measure


class Contention:
    """Measures this process. An agent imports the stack under test and forks cells, so it has much to do itself."""

    def __init__(self, schedstat: Path = _SCHEDSTAT) -> None:
        self._file = schedstat
        self._since = 0, 0  # nanoseconds on a core, and waiting for one, when last measured
        self._factor = 1.0

    def factor(self) -> float:
        """Return the largest (ran + waited) / ran so far, from 1 to MAX_CONTENTION.

        1 where the kernel does not count.
        """
        ran, waited = self._read()
        if ran - self._since[0] >= _SHORTEST_NS:
            measured = 1 + (waited - self._since[1]) / (ran - self._since[0])
            # The largest, since a deadline that was extended must not shrink again while the cell runs.
            self._factor = min(max(self._factor, measured), MAX_CONTENTION)
            self._since = ran, waited
        return self._factor

    def _read(self) -> tuple[int, int]:
        try:
            ran, waited, _ = self._file.read_text(encoding="ascii").split()
        except (OSError, ValueError):  # a kernel without CONFIG_SCHED_INFO, or another system
            return 0, 0
        return int(ran), int(waited)
