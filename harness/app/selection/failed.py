"""`--failed`: the cells that did not pass in the newest finished run of a matrix."""

from __future__ import annotations

from pathlib import Path

from harness.core.errors import InputError, Problem
from harness.core.outcomes import Outcome
from harness.core.run.run_dir import text_of
from harness.infra.inputs.matrix_file import read_matrix
from harness.infra.runs.listing import listing
from harness.judge.report.render_json import read_report

_AGAIN = (Outcome.FAIL, Outcome.XPASS, Outcome.ERROR, Outcome.FLAKY)


def failed_cells(matrix: Path, run_parent: Path) -> list[str]:
    """Their ids; InputError when the matrix has no finished run under the folder, or every cell passed."""
    name = read_matrix(matrix).name
    for run in reversed(listing(run_parent)):
        path = run_parent / run.run_id / "report.json"
        if run.state != "finished" or run.faults or not run.run_id.startswith(f"{name}-"):
            continue
        report = read_report(text_of(path))
        if report.matrix != name:
            continue
        if failed := [cell.id for cell in report.cells if cell.outcome in _AGAIN]:
            return failed
        raise InputError(Problem(key="--failed", message=f"no cell failed in {run.run_id}"))
    message = f"no finished run of {name} under {run_parent}"
    raise InputError(Problem(key="--failed", message=message, hint="run the matrix without --failed first"))
