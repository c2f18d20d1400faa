"""Writes the result of a cell whose agent wrote none."""

from __future__ import annotations

import time

from harness.core.run.cell_result import CellResult, sealed
from harness.core.run.run_dir import RunDir, write_json


def end_as_error(run: RunDir, cell: str, attempt: int, reason: str) -> None:
    """Write an error as the result of an attempt, unless it already has a result."""
    result = run.attempt(cell, attempt).result
    if not result.exists():
        now = time.time()
        error = CellResult(cell=cell, attempt=attempt, status="error", reason=reason, started=now, finished=now)
        write_json(result, sealed(error))
