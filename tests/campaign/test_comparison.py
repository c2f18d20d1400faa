"""The two halves of a run with --since, and what differs between them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from harness.campaign.comparison import compared, halves
from harness.core.outcomes import Outcome
from harness.core.run.report import ChangeKind, Report
from harness.core.tolerances import SLOWER_RUN
from tests.sample_report import sample_report


def doubled(report: Report) -> Report:
    """The report with each cell at the commit of --since as well, where all of them pass."""
    earlier = [
        replace(
            cell,
            id=f"{cell.id}-since",
            axes={**cell.axes, "stack": "fork-since"},
            outcome=Outcome.PASS,
            findings=[],
        )
        for cell in report.cells
    ]
    ours = [replace(cell, axes={**cell.axes, "stack": "fork"}) for cell in report.cells]
    return replace(report, cells=[*ours, *earlier], rejected=[])


def test_each_cell_is_in_its_half() -> None:
    report = sample_report()
    before, after = halves(doubled(report), ["fork-since"])
    assert {cell.stack for cell in before.cells} == {"fork-since"}
    assert [cell.id for cell in after.cells] == [cell.id for cell in report.cells]


def test_a_cell_that_fails_in_the_working_tree_alone_is_newly_failing(tmp_path: Path) -> None:
    before, after = halves(doubled(sample_report()), ["fork-since"])
    comparison = compared(before, after, tmp_path, SLOWER_RUN)
    changes = {cell.id: cell.change for cell in comparison.cells}
    failing = [cell.id for cell in after.cells if cell.outcome is Outcome.FAIL]
    assert failing
    assert all(changes[name] is ChangeKind.NEWLY_FAILING for name in failing)
    assert comparison.verdict == "regression"
