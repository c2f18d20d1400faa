"""Counts of a run in progress, and the time left; imports of torch and Megatron do not count as time of cells.

Before a cell has ended, the time left comes from the history, if that knows the cells.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

STATUSES = ("completed", "failed", "rejected", "error")  # of CellResult


@dataclass(frozen=True, kw_only=True)
class Expected:
    """What the history says of a run's cells: seconds of each that it knows, and how many ran at once on average."""

    cells: Mapping[str, float] = field(default_factory=dict)
    at_once: float = 1.0  # imports and waiting included, so that it may be less than 1


@dataclass(kw_only=True)
class RunState:
    """What is known of a run while it is followed. The clock's seconds are monotonic."""

    clock: Callable[[], float] = time.monotonic
    total: int = 0
    ranks: Mapping[str, int] = field(default_factory=dict)  # cell -> ranks, which weigh it
    agents: int = 1  # allocations
    begun: float = 0.0
    phase: str = ""
    phase_since: float = 0.0
    running: dict[str, float] = field(default_factory=dict)  # cell -> its start
    counts: dict[str, int] = field(default_factory=lambda: dict.fromkeys(STATUSES, 0))
    weight_done: float = 0.0
    expected: Expected = Expected()
    imports: list[float] = field(default_factory=list)  # seconds of each agent that has imported
    importing: int = 0  # agents
    _busy_s: float = 0.0  # while at least one cell ran
    _busy_since: float = 0.0
    _weights: Mapping[str, float] = field(default_factory=dict)  # cell -> seconds, or ranks

    def start(self, total: int, ranks: Mapping[str, int], agents: int, expected: Expected | None = None) -> None:
        self.total, self.ranks, self.agents = total, ranks, max(agents, 1)
        self.expected = expected or Expected()
        known = {cell: seconds for cell, seconds in self.expected.cells.items() if cell in ranks}
        scale = sum(known.values()) / sum(ranks[cell] for cell in known) if known else 1.0
        self._weights = {cell: known.get(cell, scale * count) for cell, count in ranks.items()}
        self.begun = self.clock()
        self.enter("starting")

    def enter(self, phase: str) -> None:
        """`phase`: "" while cells run."""
        self.phase, self.phase_since = phase, self.clock()

    def agent_started(self) -> None:
        self.importing += 1
        if not self.running:
            self.enter("importing torch and Megatron")

    def agent_loaded(self, seconds: float) -> None:
        self.importing = max(self.importing - 1, 0)
        self.imports.append(seconds)
        self.enter("")

    def cell_started(self, cell: str) -> None:
        if not self.running:
            self._busy_since = self.clock()
        self.running[cell] = self.clock()
        self.enter("")

    def cell_finished(self, cell: str, status: str) -> None:
        before = bool(self.running)
        self.running.pop(cell, None)
        if before and not self.running:
            self._busy_s += self.clock() - self._busy_since
        if status in self.counts:  # else a damaged journal
            self.counts[status] += 1
            self.weight_done += self._weights.get(cell, 1.0)

    @property
    def done(self) -> int:
        return sum(self.counts.values())

    @property
    def weight(self) -> float:
        """Of all cells: seconds that they take, or ranks where no time is known."""
        return sum(self._weights.values()) or float(self.total)

    def seconds_left(self) -> float | None:
        """Estimated from the ended cells, weighted by their expected times or their ranks, and the imports to come.

        Until a cell ends: from the history; None if it knows none of the cells.
        """
        busy = self._busy_s + (self.clock() - self._busy_since if self.running else 0.0)
        if not self.weight_done or not busy:
            known = any(cell in self.ranks for cell in self.expected.cells)
            return max(self.weight / self.expected.at_once - (self.clock() - self.begun), 0.0) if known else None
        cells = max(self.weight - self.weight_done, 0.0) * busy / self.weight_done
        to_come = max(self.agents - len(self.imports), 0)
        return cells + (to_come * max(self.imports) if self.imports and cells else 0.0)
