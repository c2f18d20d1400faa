"""How far a run is, as text: from its journal, its results and, on a cluster, one question to Slurm."""

from __future__ import annotations

from collections import Counter

from harness.edge.evidence_files import read_result
from harness.edge.run_dir import RunDir, read_events
from harness.edge.slurm_launcher import submitted
from harness.edge.slurm_state import SlurmClient
from harness.words.run_plan import RunPlan


def status_text(run: RunDir, plan: RunPlan) -> str:
    """Cells by what became of them, those that run now, and jobs by state."""
    cells = [cell.id for cell in plan.expansion.cells]
    results = {cell: result for cell in cells if (result := read_result(run, cell)) is not None}
    counts = Counter(result.status for result in results.values())
    started = {event["cell"] for event in _agents(run, plan) if event["event"] == "cell_started"}
    running = [cell for cell in cells if cell in started and cell not in results]
    lines = [f"{plan.run_id}: {len(results)} of {len(cells)} cells have ended"]
    lines += [f"  {status}: {count}" for status, count in sorted(counts.items())]
    lines += [f"  running: {cell}" for cell in running]
    jobs = submitted(run)
    if jobs:
        states = Counter(state.state for state in SlurmClient().states(list(jobs.values())).values())
        lines.append("Jobs: " + ", ".join(f"{count} {state}" for state, count in sorted(states.items())))
    return "\n".join(lines)


def _agents(run: RunDir, plan: RunPlan) -> list[dict[str, str]]:
    return [event for one in plan.allocations for event in read_events(run.agent_journal(one.name, 0))]
