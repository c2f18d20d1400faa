"""`harness list`: the runs under a folder, finished or not, newest last."""

from __future__ import annotations

import json
from pathlib import Path

from harness.core.outcomes import EXIT_PASS
from harness.infra import screen


def list_runs(run_parent: Path, *, limit: int, as_json: bool) -> int:
    """Print id, state and cells of each run."""
    from harness.infra.runs.listing import listing

    runs = listing(run_parent)[-limit:]
    if as_json:
        screen.json_data(json.dumps([run.jsonable() for run in runs], indent=2) + "\n")
        return EXIT_PASS
    width = max((len(run.run_id) for run in runs), default=0)
    for run in runs:
        screen.out(screen.beside(f"{run.run_id:<{width}}  {run.state:<11}  ", run.text))
    if not runs:
        screen.out(f"no runs under {run_parent}")
    return EXIT_PASS
