"""Handles the events of agents on the launcher's side."""

from __future__ import annotations

from collections.abc import Callable

from harness.core.run.events import CellFinished, CellStarted, Event, Loaded, Started, to_line
from harness.core.run.journal import append_event, read_events
from harness.core.run.run_dir import RunDir
from harness.core.serialization import dumps
from harness.infra.progress import Progress


class Listener:
    """Writes the agents' events into the run's journal, each once even if the run is resumed, and shows them."""

    def __init__(
        self, run: RunDir, progress: Progress | None = None, ended: Callable[[str], None] | None = None
    ) -> None:
        """`ended`: called with each cell that has ended, last."""
        self.run, self._ended = run, ended
        self._known = {dumps(to_line(event)) for event in read_events(run.events)}
        self.progress = progress or Progress()
        self.import_s = 0.0
        self._begun: dict[str, float] = {}

    def __call__(self, event: Event) -> None:
        if dumps(to_line(event)) not in self._known:
            append_event(self.run.events, event)
        if isinstance(event, Started):
            self.progress.agent_started()
        elif isinstance(event, Loaded):
            self.import_s = max(self.import_s, event.import_s)
            self.progress.agent_loaded(event.import_s)
        elif isinstance(event, CellStarted):
            self._begun[event.cell] = event.time
            self.progress.cell_started(event.cell)
        elif isinstance(event, CellFinished):
            seconds = event.time - self._begun.get(event.cell, event.time)
            self.progress.cell_finished(event.cell, event.status or "", seconds)
            if self._ended is not None:
                self._ended(event.cell)
