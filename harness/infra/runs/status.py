"""The progress of a run as text: from its journals, its results and, on a cluster, one call of Slurm."""

from __future__ import annotations

from collections import Counter

from harness.core.run.events import CellStarted
from harness.core.run.journal import read_events
from harness.core.run.run_dir import RunDir
from harness.core.run.run_plan import RunPlan
from harness.infra.runs.evidence_files import read_result
from harness.infra.runs.lock import launcher_of
from harness.infra.slurm.client import SlurmClient
from harness.infra.slurm.follower import queue_text
from harness.infra.slurm.submit import submitted


def status_text(run: RunDir, plan: RunPlan) -> str:
    """Cells by status, the cells that are running, and jobs by state."""
    cells = [cell.id for cell in plan.expansion.cells]
    results = {cell: result for cell in cells if (result := read_result(run, cell)) is not None}
    counts = Counter(result.status for result in results.values())
    started = _started(run, plan)
    running = [cell for cell in cells if cell in started and cell not in results]
    lines = [f"{plan.run_id}: {len(results)} of {len(cells)} cells have ended"]
    lines += [f"  {status}: {count}" for status, count in sorted(counts.items())]
    followed = launcher_of(run)
    jobs = submitted(run)
    word = "running" if followed or jobs else "interrupted"
    lines += [f"  {word}: {cell}" for cell in running]
    if followed:
        lines.append(f"Launcher: {followed}")
    elif len(results) < len(cells):
        lines.append(f"Launcher: ended; continue with: harness resume {run.root}")
    if jobs:
        client = SlurmClient()
        known = client.states(list(jobs.values()))
        states = Counter(state.state for state in known.values())
        lines.append("Jobs: " + ", ".join(f"{count} {state}" for state, count in sorted(states.items())))
        queue = queue_text(client.pending([job for job, state in known.items() if state.state == "PENDING"]))
        lines += [queue] if queue else []
    if run.cancelled.exists():
        lines.append(
            "The run was cancelled: nothing more is submitted; harness resume --errors undoes the cancellation"
        )
    return "\n".join(lines)


def _started(run: RunDir, plan: RunPlan) -> set[str]:
    journals = (run.agent_journal(run.newest_order(one.name), 0) for one in plan.allocations)
    return {event.cell for path in journals for event in read_events(path) if isinstance(event, CellStarted)}
