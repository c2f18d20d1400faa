"""Counts of a run in progress, and the time left; imports of torch and Megatron do not count as time of cells."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

STATUSES = ("completed", "failed", "rejected", "error")  # of CellResult


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
    weight_done: int = 0
    imports: list[float] = field(default_factory=list)  # seconds of each agent that has imported
    importing: int = 0  # agents
    _busy_s: float = 0.0  # while at least one cell ran
    _busy_since: float = 0.0

    def start(self, total: int, ranks: Mapping[str, int], agents: int) -> None:
        self.total, self.ranks, self.agents = total, ranks, max(agents, 1)
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
            self.weight_done += self.ranks.get(cell, 1)

    @property
    def done(self) -> int:
        return sum(self.counts.values())

    @property
    def weight(self) -> int:
        return sum(self.ranks.values()) or self.total

    def seconds_left(self) -> float | None:
        """Estimated from the ended cells, weighted by their ranks, and the imports to come; None until a cell ends."""
        busy = self._busy_s + (self.clock() - self._busy_since if self.running else 0.0)
        if not self.weight_done or not busy:
            return None
        cells = max(self.weight - self.weight_done, 0) * busy / self.weight_done
        to_come = max(self.agents - len(self.imports), 0)
        return cells + (to_come * max(self.imports) if self.imports and cells else 0.0)
