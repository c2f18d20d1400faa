"""Compares two reports and writes what differs beside the later one; also the two halves of a run with --since."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from harness.campaign.finalize import count_commits
from harness.core.run.run_dir import RunDir, write_atomic
from harness.infra.files import is_file
from harness.infra.screen import relative_path
from harness.reporting.compare.render import comparison_lines, render_comparison_markdown
from harness.reporting.compare.runs import Moved, compare_runs, with_commits
from harness.runs.evidence_files import read_plan

if TYPE_CHECKING:
    from harness.core.run.report import Report
    from harness.core.tolerances import Bound
    from harness.reporting.compare.runs import Comparison, Counts


def compared(before: Report, after: Report, folder: Path, slower: Bound) -> Comparison:
    """Return what changed. `folder`: of the later run, whose stacks name repositories that count the commits."""
    comparison = compare_runs(before, after, slower=slower)
    return with_commits(comparison, _counts(comparison, folder))


def write_comparison(comparison: Comparison, after: Report, folder: Path, earlier: Path) -> list[tuple[str, str]]:
    """Write compare.md and compare.html beside the later report, which then links the latter; return lines to print.

    `earlier`: the folder of the earlier run.
    """
    from harness.reporting.html.compare import render_comparison_html
    from harness.reporting.html.report import render_html

    texts = {
        "compare.md": render_comparison_markdown(comparison),
        "compare.html": render_comparison_html(comparison, folder, earlier),
    }
    for name, text in texts.items():
        write_atomic(folder / name, text)
    if is_file(folder / "report.html"):  # now there is a comparison that it links
        write_atomic(folder / "report.html", render_html(after, folder))
    return [*((f"written: {relative_path(folder / name)}", "") for name in texts), *comparison_lines(comparison)]


def halves(report: Report, earlier: Collection[str]) -> tuple[Report, Report]:
    """Return the cells of the `earlier` stacks and the others, each as a report."""

    def half(of_earlier: bool) -> Report:
        cells = [cell for cell in report.cells if (cell.stack in earlier) == of_earlier]
        rejected = [cell for cell in report.rejected if (cell.axes.get("stack", "") in earlier) == of_earlier]
        return replace(report, cells=cells, rejected=rejected)

    return half(True), half(False)


def _counts(comparison: Comparison, folder: Path) -> Counts:
    """Return the number of commits between differing commits, from the repositories that the later run's stacks
    name.
    """
    moves = [
        (stack.stack.rpartition(" ")[2], item.before or "", item.after or "")
        for stack in comparison.stacks
        for item in stack.differences
        if item.is_move
    ]
    run = RunDir(folder)
    if not moves or not run.plan.exists():
        return {}
    found = count_commits(read_plan(run), moves)
    return {(one.before, one.after): Moved(one.added, one.removed) for one in found}
