"""Runs the cells of a plan with live progress, on any launcher."""

from __future__ import annotations

import time

from harness.app.pipeline.listener import Listener
from harness.core.run.events import Launched
from harness.core.run.journal import note
from harness.core.run.run_dir import RunDir
from harness.core.run.run_plan import RunPlan
from harness.infra.launcher import Launcher, Observer


def launch(run: RunDir, plan: RunPlan, launcher: Launcher) -> None:
    """Start the cells not started yet; returns when all cells have ended. KeyboardInterrupt passes through."""
    ranks = {cell.id: cell.config.layout.world_size for cell in plan.expansion.cells}
    begin = time.perf_counter()
    listener = Listener(run)
    progress = listener.progress
    progress.start(len(ranks), ranks, len(plan.allocations))
    try:
        launcher.follow(run, plan, Observer(event=listener, note=progress.note, queue=progress.queue))
    finally:
        progress.stop()
    timing = {"launch_s": time.perf_counter() - begin, "import_s": listener.import_s}
    note(run.events, Launched(timing=timing))
