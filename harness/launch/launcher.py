"""How the agents of a run are started and followed: on this machine (local.py), or as Slurm jobs (slurm/)."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from harness.core.errors import Problem
from harness.core.run.events import Event
from harness.core.run.records import CellResult, sealed
from harness.core.run.run_dir import RunDir, write_json
from harness.core.run.run_plan import RunPlan
from harness.matrix.cluster import ClusterProfile
from harness.matrix.schema.sections import Launch

NO_JOBS = Problem(
    key="--detach",
    message="there are no jobs on this machine: the cells would end with the launcher",
    hint="name a Slurm profile with --cluster, or run the launcher under tmux or nohup",
)


@dataclass(frozen=True, kw_only=True)
class Observer:
    """Callbacks for what happens while a run is followed."""

    event: Callable[[Event], None]  # of agents
    note: Callable[[str], None]  # a line for the user
    queue: Callable[[str], None]  # why jobs wait; "" when none does


@dataclass(frozen=True, kw_only=True)
class Cancelled:
    """The jobs of a cancelled run; an array counts as one job."""

    ended: tuple[str, ...]  # numbers of the jobs that Slurm was asked to end
    over: int  # jobs that had ended before
    left: tuple[str, ...] = ()  # asked to end, but not ended by Slurm yet

    @property
    def text(self) -> str:
        parts = [f"{len(self.ended)} ended", f"{self.over} had ended before"]
        parts += [f"{len(self.left)} not ended by Slurm yet: {', '.join(self.left)}"] if self.left else []
        return ", ".join(parts)


class Launcher(Protocol):
    """Runs the cells of a plan. All state is in the run directory, so another launcher of that kind can continue."""

    @property
    def detached(self) -> bool:
        """Whether cells are jobs, which keep running when this process ends; else they end with it."""

    def write(self, run: RunDir, plan: RunPlan, launch: Launch, profile: ClusterProfile, file: Path | None) -> None:
        """Write what the agents need besides plan.json. `file`: the profile's; its template is relative to it.

        InputError when a job file cannot be written safely; then nothing is written.
        """

    def describe(self, run: RunDir, plan: RunPlan) -> list[str]:
        """Return one line for each thing that `submit` or `follow` would start; job files must have been written."""

    def submit(self, run: RunDir, plan: RunPlan, say: Callable[[str], None]) -> int:
        """Start what was not started yet, without waiting for it; return the number of allocations that have a job.

        InputError where cells would end with this process; InfrastructureError when a job is refused.
        """

    def follow(self, run: RunDir, plan: RunPlan, observer: Observer) -> None:
        """Start what was not started yet; return when every cell of the plan has ended.

        KeyboardInterrupt passes through.
        """

    def cancel(self, run: RunDir, plan: RunPlan) -> Cancelled:
        """End the jobs of the run, and keep it from starting more. InputError where there are no jobs."""


def end_as_error(run: RunDir, cell: str, attempt: int, reason: str) -> None:
    """Write an error as the result of an attempt, unless it already has a result."""
    result = run.attempt(cell, attempt).result
    if not result.exists():
        now = time.time()
        error = CellResult(cell=cell, attempt=attempt, status="error", reason=reason, started=now, finished=now)
        write_json(result, sealed(error))
