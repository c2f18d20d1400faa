"""The progress of a run as text: from its journals, its results and, on a cluster, one call of Slurm."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from harness.core.run.events import CellStarted, read_events
from harness.core.run.run_dir import RunDir
from harness.core.run.run_plan import RunPlan
from harness.launch.slurm.client import SlurmClient
from harness.launch.slurm.follow import allocations_of, queue_text
from harness.launch.slurm.submit import submitted
from harness.runs.evidence_files import newest, read_result
from harness.runs.lock import launcher_of


@dataclass(frozen=True, kw_only=True)
class RunStatus:
    """How far a run is; the fields are those of `harness status --json`."""

    run_id: str
    directory: str
    cells: int
    ended: dict[str, int]  # status of results -> cells
    running: list[str]
    interrupted: list[str]  # begun, without a result, and nothing runs them
    launcher: str | None  # the process that follows the run
    jobs: dict[str, int] = field(default_factory=dict)  # state -> jobs of a cluster
    queue: str = ""  # why jobs wait
    cancelled: bool = False

    @property
    def text(self) -> str:
        """Cells by status, the cells that are running, and jobs by state."""
        ended = sum(self.ended.values())
        lines = [f"{self.run_id}: {ended} of {self.cells} cells have ended"]
        lines += [f"  {status}: {count}" for status, count in sorted(self.ended.items())]
        lines += [f"  running: {cell}" for cell in self.running]
        lines += [f"  interrupted: {cell}" for cell in self.interrupted]
        if self.launcher:
            lines.append(f"Launcher: {self.launcher}")
        elif ended < self.cells:
            lines.append(f"Launcher: ended; continue with: harness resume {self.directory}")
        if self.jobs:
            lines.append("Jobs: " + ", ".join(f"{count} {state}" for state, count in sorted(self.jobs.items())))
            lines += [self.queue] if self.queue else []
        if self.cancelled:
            lines.append(
                "The run was cancelled: nothing more is submitted; harness resume --errors undoes the cancellation"
            )
        return "\n".join(lines)


def status_of(run: RunDir, plan: RunPlan) -> RunStatus:
    """Read the status of a run from its files, and ask Slurm about its jobs if it has any."""
    cells = [cell.id for cell in plan.expansion.cells]
    results = {cell: result for cell in cells if (result := read_result(run, cell)) is not None}
    allocation_of = _begun(run, plan)
    followed = launcher_of(run)
    jobs = submitted(run)
    client = SlurmClient()
    states = client.states(list(jobs.values())) if jobs else {}
    open_cells = [cell for cell in cells if cell in allocation_of and cell not in results]
    lost = {cell: states[job].ended if (job := jobs.get(allocation_of[cell])) else not followed for cell in open_cells}
    waiting = [job for job, state in states.items() if state.state == "PENDING"]
    return RunStatus(
        run_id=plan.run_id,
        directory=str(run.root),
        cells=len(cells),
        ended=dict(Counter(result.status for result in results.values())),
        running=[cell for cell in open_cells if not lost[cell]],
        interrupted=[cell for cell in open_cells if lost[cell]],
        launcher=followed,
        jobs=dict(Counter(state.state for state in states.values())),
        queue=queue_text(client.pending(waiting)) if jobs else "",
        cancelled=run.cancelled.exists(),
    )


def _begun(run: RunDir, plan: RunPlan) -> dict[str, str]:
    """Return the allocation of each cell whose newest attempt an agent has started."""
    journals = {
        allocation.name: run.agent_journal(run.newest_order(allocation.name), 0)
        for allocation in allocations_of(run, plan)
    }
    started = ((name, event) for name, path in journals.items() for event in read_events(path))
    return {
        event.cell: name
        for name, event in started
        if isinstance(event, CellStarted) and event.attempt == newest(run, event.cell)
    }
