"""The progress of a run as text: from its journals, its results and, on a cluster, one call of Slurm."""

from __future__ import annotations

from collections import Counter

from harness.core.run.events import CellStarted
from harness.core.run.journal import read_events
from harness.core.run.run_dir import RunDir
from harness.core.run.run_plan import RunPlan
from harness.infra.runs.evidence_files import newest, read_result
from harness.infra.runs.lock import launcher_of
from harness.infra.slurm.client import SlurmClient
from harness.infra.slurm.follower import queue_text
from harness.infra.slurm.retry import allocations_of
from harness.infra.slurm.submit import submitted


def status_text(run: RunDir, plan: RunPlan) -> str:
    """Cells by status, the cells that are running, and jobs by state."""
    cells = [cell.id for cell in plan.expansion.cells]
    results = {cell: result for cell in cells if (result := read_result(run, cell)) is not None}
    counts = Counter(result.status for result in results.values())
    begun = _begun(run, plan)
    lines = [f"{plan.run_id}: {len(results)} of {len(cells)} cells have ended"]
    lines += [f"  {status}: {count}" for status, count in sorted(counts.items())]
    followed = launcher_of(run)
    jobs = submitted(run)
    client = SlurmClient()
    known = client.states(list(jobs.values())) if jobs else {}
    for cell in (cell for cell in cells if cell in begun and cell not in results):
        job = jobs.get(begun[cell])
        lost = known[job].ended if job else not followed
        lines.append(f"  {'interrupted' if lost else 'running'}: {cell}")
    if followed:
        lines.append(f"Launcher: {followed}")
    elif len(results) < len(cells):
        lines.append(f"Launcher: ended; continue with: harness resume {run.root}")
    if jobs:
        states = Counter(state.state for state in known.values())
        lines.append("Jobs: " + ", ".join(f"{count} {state}" for state, count in sorted(states.items())))
        queue = queue_text(client.pending([job for job, state in known.items() if state.state == "PENDING"]))
        lines += [queue] if queue else []
    if run.cancelled.exists():
        lines.append(
            "The run was cancelled: nothing more is submitted; harness resume --errors undoes the cancellation"
        )
    return "\n".join(lines)


def _begun(run: RunDir, plan: RunPlan) -> dict[str, str]:
    """Cell -> allocation, for cells whose newest attempt an agent has started."""
    journals = {one.name: run.agent_journal(run.newest_order(one.name), 0) for one in allocations_of(run, plan)}
    started = ((name, event) for name, path in journals.items() for event in read_events(path))
    return {
        event.cell: name
        for name, event in started
        if isinstance(event, CellStarted) and event.attempt == newest(run, event.cell)
    }
