"""The verdicts of a green run of matrices/smoke.yaml on any machine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from harness.core.outcomes import Lane, LaneVerdict, Outcome
from harness.core.run.report import Report
from harness.inputs.matrix_file import read_matrix
from harness.matrix.expansion.expand import expand

LANES = {Lane.METADATA: LaneVerdict.PASS, Lane.NUMERICS: LaneVerdict.PASS, Lane.THROUGHPUT: LaneVerdict.SKIP}


def verdicts(report: Report) -> dict[str, Any]:
    """Outcome, lanes and findings by cell, with the rejected combinations and their reasons."""
    cells = {cell.id: (cell.outcome, cell.lanes, [item.check for item in cell.findings]) for cell in report.cells}
    return {**cells, **{one.id: (one.rule, one.reason) for one in report.rejected}}


def green(root: Path) -> dict[str, Any]:
    """The verdicts that a run must have: every cell passes, and what the plan rejects is rejected."""
    made = expand(read_matrix(root / "matrices" / "smoke.yaml"))
    rejected = {one.id: (one.rejections[0].rule, one.rejections[0].reason) for one in made.rejected}
    assert len(made.cells) == 42
    assert len(rejected) == 1
    return {**{cell.id: (Outcome.PASS, LANES, []) for cell in made.cells}, **rejected}
