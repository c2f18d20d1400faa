"""Runs cells without a matrix, and compares the verdict on one with a wanted finding."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from harness.app.pipeline import judging, launch, plan_run
from harness.core.cell.config import CellConfig
from harness.core.outcomes import Finding, Outcome, Severity
from harness.core.run.run_dir import RunDir
from harness.core.run.run_plan import Expansion, PlannedCell
from harness.core.stack import ReadyStack
from harness.core.tolerances import ToleranceOverrides
from harness.infra.local_launcher import LocalLauncher
from harness.judge.report.model import Report, ReportCell
from harness.plan.expansion.expand import with_controls
from harness.plan.shrink.search import Answer, Kind


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
    expansion = Expansion(cells=tuple(cells.values()), rejected=())
    plan = plan_run.plan_cells(expansion, name=directory.root.name, file=matrix_file, command=command)
    usable = [item for item in plan.allocations if item.stack not in stacks or stacks[item.stack].usable]
    plan = replace(plan, stacks=dict(stacks), tolerances=tolerances, allocations=tuple(usable))
    plan_run.write_plan(directory, plan, None)
    launch.launch(directory, plan, LocalLauncher())
    return judging.judge(directory, plan)


def sort_of(finding: Finding) -> tuple[str, str, str | None]:
    """The identity of a finding: lane, check and class of fault. The location may differ."""
    return finding.lane.value, finding.check, finding.fault_class


def answer_of(report: Report, name: str, wanted: Finding) -> Answer:
    """Whether a cell of the report has the wanted finding."""
    for rejected in report.rejected:
        if rejected.id == name:
            return Answer(kind=Kind.UNUSABLE, text=f"is rejected: {rejected.reason}")
    return _answer(next(cell for cell in report.cells if cell.id == name), wanted)


def _answer(cell: ReportCell, wanted: Finding) -> Answer:
    if cell.outcome is Outcome.ERROR:
        return Answer(kind=Kind.UNUSABLE, text=f"cannot be judged: {cell.reason.splitlines()[0]}")
    errors = [finding for finding in cell.findings if finding.severity is Severity.ERROR]
    if cell.outcome is not Outcome.FAIL or not errors:
        return Answer(kind=Kind.PASSES, text="passes")
    if sort_of(wanted) in map(sort_of, errors):
        return Answer(kind=Kind.SAME, text="fails the same way")
    first = errors[0]
    return Answer(
        kind=Kind.DIFFERS, text=f"fails in another way ({first.lane.value}, {first.check}: {first.fault_class})"
    )
