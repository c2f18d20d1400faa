"""What the launcher does with the events of agents."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from harness.core.run.run_dir import RunDir, append_line, read_events
from harness.core.serialization import dumps
from harness.infra.console import Progress


class Listener:
    """Writes the agents' events into the run's journal, once however often the run is resumed, and shows them."""

    def __init__(self, run: RunDir) -> None:
        self.run = run
        self._known = {dumps(event) for event in read_events(run.events)}
        self.progress = Progress()
        self.import_s = 0.0
        self._begun: dict[str, float] = {}

    def __call__(self, event: dict[str, Any]) -> None:
        if dumps(event) not in self._known:
            append_line(self.run.events, event)
        with suppress(KeyError, TypeError):  # a damaged event moves the display, never a verdict
            self._show(event)

    def _show(self, event: dict[str, Any]) -> None:
        if event["event"] == "loaded":
            self.import_s = max(self.import_s, event["import_s"])
        elif event["event"] == "cell_started":
            self._begun[event["cell"]] = event["time"]
            self.progress.cell_started(event["cell"])
        elif event["event"] == "cell_finished":
            seconds = event["time"] - self._begun.get(event["cell"], event["time"])
            self.progress.cell_finished(event["cell"], event["status"], seconds)
