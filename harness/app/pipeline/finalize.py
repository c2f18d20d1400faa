"""Finalizes a run: judges its files, writes its reports, records it in the history, sends the verdict."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from harness.app import plugins
from harness.app.error_boundary import tracebacks_in
from harness.app.pipeline.baselines import keep_baselines
from harness.core.errors import HarnessError
from harness.core.outcomes import EXIT_PASS, EXIT_SKIP, EXIT_UNDECIDED
from harness.core.run.run_dir import RunDir
from harness.infra import screen
from harness.infra.screen import relative_path
from harness.judge.bisect.result import git_exit_code

if TYPE_CHECKING:
    from harness.core.run.run_plan import RunPlan
    from harness.judge.report.model import Report

VARIABLE = "HARNESS_HISTORY"
FILE = "history.sqlite"


@dataclass(frozen=True, kw_only=True)
class FinalizeOptions:
    """What happens with the verdict of a run besides its reports."""

    record: bool = True
    history: Path | None = None  # --history
    notify: tuple[str, ...] = ()  # --notify: commands and URLs
    for_git: bool = False  # exit codes for `git bisect run`
    most_failures: int | None = None  # --maxfail
    code: int | None = None  # exit code instead of the verdict's, when a signal has ended the run
    reported: Callable[[Report, Path], None] | None = None  # called with the report and its folder, last


def judge_and_report(directory: RunDir, plan: RunPlan, options: FinalizeOptions) -> int:
    """Judge a run directory, write and print its reports, record and send the verdict; returns the exit code.

    Files that cannot be written are named on stderr, and turn exit code 0 into 3, or 125 for `git bisect run`. A
    failure of the history or of a receiver is printed and changes nothing.
    """
    with tracebacks_in(directory.root):
        return _judge_and_report(directory, plan, options)


def _judge_and_report(directory: RunDir, plan: RunPlan, options: FinalizeOptions) -> int:
    from harness.app.pipeline.announce import announce

    options = replace(options, record=options.record and not plan.faults)
    plugins.require(plan)
    file = history_file(options.history, directory.root.parent)
    problems: list[str] = []
    try:
        keep_baselines(directory, plan, file)
    except (HarnessError, OSError) as error:
        problems.append(str(error))
    report, paths = _reported(directory, plan, file if options.record else None, problems)
    if options.record:
        record(directory, report, file)
    try:
        _print(report, paths, _code(report, plan, options, problems))
    except OSError as error:
        problems.append(f"the verdict cannot be printed: {error.strerror}")
    for problem in problems:
        screen.err(f"harness: {problem}")
    code = _code(report, plan, options, problems)
    announce(options.notify, report, directory.root, code)
    if options.reported is not None:
        options.reported(report, directory.root)
    return code


def _reported(directory: RunDir, plan: RunPlan, history: Path | None, problems: list[str]) -> tuple[Report, list[Path]]:
    """Judge, and write the report files; returns the report and their paths. `history`: to find the run before."""
    from harness.app.pipeline import judge_run, reports
    from harness.app.pipeline.run_diff import with_run_diff
    from harness.infra.progress import Judging

    judging = Judging()
    judging.start(len(plan.expansion.cells))
    paths: list[Path] = []
    try:
        report = with_run_diff(directory, plan, judge_run.judge(directory, plan, judging.judged), history)
        judging.enter("writing the reports")
        try:
            paths = reports.write_reports(directory, report)
        except HarnessError as error:
            problems.append(f"not all reports could be written: {error}")
    finally:
        judging.stop()
    return report, paths


def _code(report: Report, plan: RunPlan, options: FinalizeOptions, problems: list[str]) -> int:
    """The exit code of the process."""
    if options.code is not None:
        return options.code
    if options.for_git:
        code, undecided = git_exit_code(report, {cell.id for cell in plan.expansion.cells}), EXIT_SKIP
    else:
        code, undecided = report.exit_code, EXIT_UNDECIDED
    return code or (undecided if problems else EXIT_PASS)


def _print(report: Report, paths: Iterable[Path], code: int) -> None:
    from harness.app.pipeline.reports import write_ci_output
    from harness.infra.console import print_report

    print_report(report, [relative_path(path) for path in paths], code=code)
    if not screen.VIEW.silent:
        write_ci_output(report, os.environ)


def history_file(named: Path | None, run_parent: Path) -> Path:
    """Path of the history: --history, else $HARNESS_HISTORY, else beside the run directories."""
    return named or Path(os.environ.get(VARIABLE) or run_parent / FILE)


def record(directory: RunDir, report: Report, file: Path) -> bool:
    """Add a report to the history; returns whether that worked. A failure is printed to stderr."""
    from harness.infra.history.database import opened
    from harness.judge.history.rows import run_row

    try:
        with opened(file, write=True) as history:
            history.record(run_row(report), directory.root)
    except (HarnessError, ValueError, OSError) as error:
        screen.err(f"harness: {report.run_id} is not recorded in the history: {error}")
        return False
    return True
