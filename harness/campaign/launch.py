"""Runs the cells of a plan with live progress, on the launcher of its cluster profile."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TextIO

from harness.campaign.progress import Expected, Progress
from harness.core.run.events import (
    CellFinished,
    CellStarted,
    Event,
    Launched,
    Loaded,
    Started,
    append_event,
    note,
    read_events,
    to_line,
)
from harness.core.run.report import ReportCell
from harness.core.run.run_dir import RunDir
from harness.core.run.run_plan import RunPlan
from harness.core.serialization import dumps
from harness.launch.launcher import Launcher, Observer
from harness.matrix.cluster import LOCAL, ClusterProfile

Judged = Callable[[Callable[[ReportCell], None]], Callable[[str], None]]


def launch(
    run: RunDir,
    plan: RunPlan,
    launcher: Launcher,
    judged: Judged | None = None,
    expected: Expected | None = None,
    stream: TextIO | None = None,
) -> None:
    """Start the cells not started yet; return when all cells have ended. KeyboardInterrupt passes through.

    `judged`: makes the judge of cells that end, from the function that shows one that failed. `expected`: times that
    the history knows, for the estimate of the time left. `stream`: for progress; None: standard output.
    """
    ranks = {cell.id: cell.config.layout.world_size for cell in plan.expansion.cells}
    begin = time.perf_counter()
    progress = Progress(stream)
    listener = Listener(run, progress, judged(progress.failed) if judged else None)
    progress.start(len(ranks), ranks, len(plan.allocations), expected)
    try:
        launcher.follow(run, plan, Observer(event=listener, note=progress.note, queue=progress.queue))
    finally:
        progress.stop()
        timing = {"launch_s": time.perf_counter() - begin, "import_s": listener.import_s}
        note(run.events, Launched(timing=timing))


def launcher_for(profile: ClusterProfile) -> Launcher:
    """Return the launcher of runs under a cluster profile."""
    if profile.kind == "slurm":
        from harness.launch.slurm.launcher import SlurmLauncher

        return SlurmLauncher()
    from harness.launch.local import LocalLauncher

    return LocalLauncher()


def launcher_of(run: RunDir) -> Launcher:
    """Return the launcher of a run that was started earlier."""
    if not run.cluster.exists():
        return launcher_for(LOCAL)
    from harness.launch.slurm.submit import profile_of

    return launcher_for(profile_of(run))


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
