"""How long the cells of a plan took when they last ran, from the history."""

from __future__ import annotations

from pathlib import Path

from harness.core.errors import HarnessError
from harness.core.run.run_plan import RunPlan
from harness.infra.progress import Expected


def expected_times(plan: RunPlan, file: Path) -> Expected:
    """Empty where the history is missing, cannot be read, or knows none of the cells: it only serves an estimate."""
    from harness.infra.history.database import opened
    from harness.infra.history.queries import durations

    if not file.exists():
        return Expected()
    try:
        with opened(file, write=False) as history:
            rows = list(history.rows(durations([cell.id for cell in plan.expansion.cells])))
    except (HarnessError, OSError):
        return Expected()
    runs = {row["run"]: (row["cells_s"], row["wall_s"]) for row in rows if row["wall_s"]}
    wall = sum(one for _, one in runs.values())
    at_once = sum(cells for cells, _ in runs.values()) / wall if wall else 1.0
    return Expected(cells={row["cell_id"]: row["seconds"] for row in rows}, at_once=at_once)
