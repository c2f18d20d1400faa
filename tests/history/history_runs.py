"""Runs for the history, built from the sample report with chosen outcomes and dates."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from harness.history.trends import RunRow, run_row
from tests.sample_report import sample_report

CELL = "tp2-pp1-cp1-sft"


def run_of(day: int, outcome: str = "PASS", *, version: str = "megatron-core 0.19.2", name: str = CELL) -> RunRow:
    """A run on a day of August whose only cell has this outcome."""
    row = run_row(sample_report())
    (cell,) = [cell for cell in row.cells if cell.name == CELL]
    cell = replace(cell, name=name, outcome=outcome, version=version)
    return replace(row, run_id=f"smoke-{day:02d}", started=f"2026-08-{day:02d}T03:00:00Z", cells=(cell,))


def timed(row: RunRow, metrics: Mapping[str, float]) -> RunRow:
    """The run with these metrics in all of its cells."""
    return replace(row, cells=tuple(replace(cell, metrics={**cell.metrics, **metrics}) for cell in row.cells))
