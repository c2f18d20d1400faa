"""The result of a shrink: the smallest cell that still fails, and everything that a report on it needs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from harness.app.shrink.trial_run import sort_of
from harness.core.cell.config import CellConfig
from harness.core.outcomes import Finding
from harness.core.stack import Stack
from harness.core.tolerances import ToleranceOverrides
from harness.judge.report.model import ReportCell
from harness.plan.shrink.search import Smallest


@dataclass(frozen=True, kw_only=True)
class Shrunk:
    """The result of a shrink and its files."""

    folder: Path
    origin: ReportCell
    finding: Finding  # of the origin; the smallest cell still has it
    smallest: Smallest
    cell: ReportCell  # the smallest cell as its round judged it; the origin when the finding did not reproduce
    config: CellConfig
    provenance: Mapping[str, Any]  # of the run that judged it
    matrix: Path | None  # smallest.yaml; None: the finding did not reproduce
    stack: Stack | None  # None: the environment of the harness
    tolerances: ToleranceOverrides

    @property
    def reported(self) -> ReportCell:
        """The cell with the wanted finding first."""
        sought = sort_of(self.finding)
        return replace(self.cell, findings=sorted(self.cell.findings, key=lambda one: sort_of(one) != sought))
