"""The end of a run: judged from its files, its reports written, the verdict told."""

from __future__ import annotations

from pathlib import Path

from harness.edge.run_dir import RunDir
from harness.words.outcomes import exit_code
from harness.words.run_plan import RunPlan


def judge_and_report(directory: RunDir, plan: RunPlan) -> int:
    """Judge what a run directory holds, write its reports, show them; the exit code of the verdict."""
    from harness.app import stages
    from harness.edge.console import print_report

    report = stages.judge(directory, plan)
    print_report(report, [shown(path) for path in stages.write_reports(directory, report)])
    return exit_code(cell.outcome for cell in report.cells)


def shown(path: Path) -> str:
    """Relative to the current folder when it lies below it."""
    try:
        return str(path.relative_to(Path.cwd()))
    except ValueError:
        return str(path)
