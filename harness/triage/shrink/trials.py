"""Runs cells without a matrix and compares the verdict on one with a wanted finding; the result of a shrink."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from harness.campaign import campaign
from harness.core.cell.config import CellConfig
from harness.core.outcomes import Finding, Outcome
from harness.core.run.provenance import Provenance
from harness.core.run.report import Report, ReportCell
from harness.core.run.run_dir import RunDir
from harness.core.run.run_plan import PlannedCell
from harness.core.stack import ReadyStack, Stack
from harness.core.tolerances import ToleranceOverrides
from harness.matrix.expansion.expand import with_controls
from harness.triage.shrink.search import Answer, Kind, Smallest


def run_cells(
    directory: RunDir,
    configs: Iterable[CellConfig],
    *,
    stacks: Mapping[str, ReadyStack],
    tolerances: ToleranceOverrides,
    matrix_file: str,
    command: Sequence[str],
) -> Report:
    """Run cells side by side on this machine, each with its controls, and judge them."""
    cells: dict[str, PlannedCell] = {}
    for cell in (cell for config in configs for cell in with_controls(config)):
        cells.setdefault(cell.id, cell)
    return campaign.run_cells(
        directory,
        cells.values(),
        name=directory.root.name,
        matrix_file=matrix_file,
        command=command,
        stacks=stacks,
        tolerances=tolerances,
    )


def sort_of(finding: Finding) -> tuple[str, str, str | None]:
    """Return the identity of a finding: lane, check and class of fault. The location may differ."""
    return finding.lane.value, finding.check, finding.fault_class


def answer_of(report: Report, name: str, wanted: Finding) -> Answer:
    """Return whether a cell of the report has the wanted finding."""
    for rejected in report.rejected:
        if rejected.id == name:
            return Answer(kind=Kind.UNUSABLE, text=f"is rejected: {rejected.reason}")
    return _answer(next(cell for cell in report.cells if cell.id == name), wanted)


def _answer(cell: ReportCell, wanted: Finding) -> Answer:
    if cell.outcome is Outcome.ERROR:
        return Answer(kind=Kind.UNUSABLE, text=f"cannot be judged: {cell.reason.splitlines()[0]}")
    errors = cell.errors
    if cell.outcome is not Outcome.FAIL or not errors:
        return Answer(kind=Kind.PASSES, text="passes")
    if sort_of(wanted) in map(sort_of, errors):
        return Answer(kind=Kind.SAME, text="fails the same way")
    first = errors[0]
    return Answer(
        kind=Kind.DIFFERS, text=f"fails in another way ({first.lane.value}, {first.check}: {first.fault_class})"
    )


@dataclass(frozen=True, kw_only=True)
class Shrunk:
    """The result of a shrink and its files."""

    folder: Path
    origin: ReportCell
    finding: Finding  # of the origin; the smallest cell still has it
    smallest: Smallest
    cell: ReportCell  # the smallest cell as its round judged it; the origin when the finding did not reproduce
    config: CellConfig
    provenance: Provenance  # of the run that judged it
    matrix: Path | None  # smallest.yaml; None: the finding did not reproduce
    stack: Stack | None  # None: the environment of the harness
    tolerances: ToleranceOverrides

    @property
    def reported(self) -> ReportCell:
        """Return the cell with the wanted finding first."""
        sought = sort_of(self.finding)
        return replace(self.cell, findings=sorted(self.cell.findings, key=lambda finding: sort_of(finding) != sought))
