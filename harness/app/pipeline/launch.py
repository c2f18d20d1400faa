"""Runs the cells of a plan with live progress, on any launcher."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TextIO

from harness.app.pipeline.listener import Listener
from harness.core.run.events import Launched
from harness.core.run.journal import note
from harness.core.run.run_dir import RunDir
from harness.core.run.run_plan import RunPlan
from harness.infra.launcher import Launcher, Observer
from harness.infra.progress import Progress
from harness.infra.time_left import Expected
from harness.judge.report.model import ReportCell

Judged = Callable[[Callable[[ReportCell], None]], Callable[[str], None]]


def launch(
    run: RunDir,
    plan: RunPlan,
    launcher: Launcher,
    judged: Judged | None = None,
    expected: Expected | None = None,
    stream: TextIO | None = None,
) -> None:
    """Start the cells not started yet; returns when all cells have ended. KeyboardInterrupt passes through.

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
