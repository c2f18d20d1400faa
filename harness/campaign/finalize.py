"""Finalizes a run: judges its files, writes its reports, records it in the history, sends the verdict.

The report has the changes since the previous run, which the history knows.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from harness.campaign import plugins
from harness.campaign.options import RunOptions
from harness.core.errors import HarnessError, InputError
from harness.core.outcomes import EXIT_PASS, EXIT_SKIP, EXIT_UNDECIDED
from harness.core.run.run_dir import RunDir, text_of, write_json
from harness.infra import screen
from harness.infra.process import tracebacks_in
from harness.infra.screen import relative_path
from harness.reporting.bisection import git_exit_code

if TYPE_CHECKING:
    from harness.core.run.report import Report
    from harness.core.run.run_plan import RunPlan
    from harness.history.database import CellHistory, History
    from harness.history.since_previous import CommitCount, Past, Previous
    from harness.history.trends import RunRow

HISTORY_VARIABLE = "HARNESS_HISTORY"
HISTORY_FILE = "history.sqlite"
PREVIOUS_FILE = "previous.json"  # the answer of the history, in the run directory
_HASH = re.compile(r"[0-9a-f]{40,64}")


@dataclass(frozen=True, kw_only=True)
class RunResult:
    """What a command returns that runs cells or judges them."""

    code: int  # exit code
    report: Report | None = None  # None: nothing is judged yet
    folder: Path | None = None  # of the run


def judge_and_report(directory: RunDir, plan: RunPlan, options: RunOptions, *, code: int | None = None) -> RunResult:
    """Judge a run directory, write and print its reports, record and send the verdict.

    Files that cannot be written are named on stderr, and turn exit code 0 into 3, or 125 for `git bisect run`. A
    failure of the history or of a receiver is printed and changes nothing. `code`: the exit code instead of the
    verdict's, when a signal has ended the run.
    """
    with tracebacks_in(directory.root):
        return _judge_and_report(directory, plan, options, code)


def _judge_and_report(directory: RunDir, plan: RunPlan, options: RunOptions, signalled: int | None) -> RunResult:
    from harness.campaign.announce import announce
    from harness.campaign.judging import keep_baselines
    from harness.reporting.console import print_lines

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
    lines, differs = _since_commit(directory, plan, report)
    try:
        _print(report, paths, _code(report, plan, options, problems, differs) if signalled is None else signalled)
        print_lines(lines)
    except OSError as error:
        problems.append(f"the verdict cannot be printed: {error.strerror}")
    for problem in problems:
        screen.err(f"harness: {problem}")
    code = _code(report, plan, options, problems, differs) if signalled is None else signalled
    announce(options.notify, report, directory.root, code)
    return RunResult(code=code, report=report, folder=directory.root)


def _reported(directory: RunDir, plan: RunPlan, history: Path | None, problems: list[str]) -> tuple[Report, list[Path]]:
    """Judge, and write the report files; return the report and their paths. `history`: to find the run before."""
    from harness.campaign import reports
    from harness.campaign.judging import judge
    from harness.campaign.progress import Judging

    judging = Judging()
    judging.start(len(plan.expansion.cells))
    paths: list[Path] = []
    try:
        report = with_run_diff(directory, plan, judge(directory, plan, judging.judged), history)
        judging.enter("writing the reports")
        try:
            paths = reports.write_reports(directory, report)
        except HarnessError as error:
            problems.append(f"not all reports could be written: {error}")
    finally:
        judging.stop()
    return report, paths


def _since_commit(directory: RunDir, plan: RunPlan, report: Report) -> tuple[list[tuple[str, str]], int | None]:
    """Compare the cells of a run with --since with those at the commit, and write what differs.

    Return the lines to print, and the exit code; no lines and None for other runs.
    """
    if not plan.earlier_stacks:
        return [], None
    from harness.campaign.comparison import compared, halves, write_comparison
    from harness.core.tolerances import SLOWER_RUN
    from harness.reporting.compare.render import exit_code

    before, after = halves(report, plan.earlier_stacks)
    comparison = compared(before, after, directory.root, SLOWER_RUN)
    return write_comparison(comparison, report, directory.root, directory.root), exit_code(comparison)


def _code(report: Report, plan: RunPlan, options: RunOptions, problems: list[str], differs: int | None = None) -> int:
    """Return the exit code of the process. `differs`: that of a comparison, which then decides instead of the cells."""
    if options.for_git:
        code, undecided = git_exit_code(report, {cell.id for cell in plan.expansion.cells}), EXIT_SKIP
    else:
        code, undecided = report.exit_code if differs is None else differs, EXIT_UNDECIDED
    return code or (undecided if problems else EXIT_PASS)


def _print(report: Report, paths: Iterable[Path], code: int) -> None:
    from harness.campaign.reports import write_ci_output
    from harness.reporting.console import print_report

    print_report(report, [relative_path(path) for path in paths], code=code)
    if not screen.VIEW.silent:
        write_ci_output(report, os.environ)


def history_file(named: Path | None, run_parent: Path) -> Path:
    """Return the path of the history: --history, else $HARNESS_HISTORY, else beside the run directories."""
    return named or Path(os.environ.get(HISTORY_VARIABLE) or run_parent / HISTORY_FILE)


def record(directory: RunDir, report: Report, file: Path) -> bool:
    """Add a report to the history; return whether that worked. A failure is printed to stderr."""
    from harness.history.database import opened
    from harness.history.trends import run_row

    try:
        with opened(file, write=True) as history:
            history.record(run_row(report), directory.root)
    except (HarnessError, ValueError, OSError) as error:
        screen.err(f"harness: {report.run_id} is not recorded in the history: {error}")
        return False
    return True


def with_run_diff(directory: RunDir, plan: RunPlan, report: Report, history: Path | None) -> Report:
    """Return the report with the changes since the previous run, if one is known.

    The history is queried once and its answer kept in the run directory; `history` None: it is not queried. An error is
    printed to stderr, and the report is returned unchanged.
    """
    from harness.history.since_previous import since
    from harness.history.trends import run_row

    try:
        row = run_row(report)
        previous = _kept_previous(directory) or _queried_previous(directory, plan, report, row, history)
        return replace(report, since=since(report, row, previous)) if previous else report
    except (HarnessError, OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        screen.err(f"harness: {report.run_id}: changes since the previous run are not shown: {error}")
        return report


def _kept_previous(directory: RunDir) -> Previous | None:
    from harness.core.serialization import from_jsonable, loads
    from harness.history.since_previous import Previous

    path = directory.root / PREVIOUS_FILE
    return from_jsonable(Previous, loads(text_of(path))) if path.exists() else None


def _queried_previous(
    directory: RunDir, plan: RunPlan, report: Report, row: RunRow, file: Path | None
) -> Previous | None:
    from harness.history.database import is_there, opened
    from harness.history.since_previous import Previous, moves

    if file is None or not is_there(file):
        return None
    with opened(file, write=False) as history:
        last = history.previous(row.matrix, row.device, row.started)
        if last is None:
            return None
        earlier = history.cell_histories(row.matrix, row.device, row.started)
        cells = {name: _past_of(cell) for name, cell in earlier.items()}
        points = {point.run_id for past in cells.values() for point in past.points}
        stacks = _stacks_of_runs(history, points, {cell.stack for cell in row.cells})
    previous = Previous(run_id=last[0], started=last[1], cells=cells, stacks=stacks)
    previous = replace(previous, commits=count_commits(plan, moves(report, row, previous)))
    write_json(directory.root / PREVIOUS_FILE, previous, indent=1)
    return previous


def _past_of(cell: CellHistory) -> Past:
    from harness.history.since_previous import Past, Point

    before = Point(run_id=cell.before_run, started=cell.before, version=cell.before_version)
    return Past(
        green=cell.green,
        last=Point(run_id=cell.run_id, started=cell.started, version=cell.version),
        first=Point(run_id=cell.since_run, started=cell.since, version=cell.since_version),
        before=before if cell.before_run else None,
        check=cell.check,
    )


def _stacks_of_runs(history: History, runs: Iterable[str], stacks: set[str]) -> dict[str, dict[str, dict[str, str]]]:
    """Return the contents of the stacks of earlier runs, from their reports where those still exist."""
    from harness.reporting.compare.runs import stack_facts
    from harness.reporting.render_json import read_provenance

    facts_by_run = {}
    for run in sorted(runs):
        directory = history.directory(run)
        path = directory and directory / "report.json"
        if path and path.exists():
            try:
                provenance = read_provenance(text_of(path))
            except InputError:  # of another version of the harness; the history still has the stack's version
                continue
            facts_by_run[run] = {stack: stack_facts(provenance, stack) for stack in sorted(stacks)}
    return facts_by_run


def count_commits(plan: RunPlan, moves: Iterable[tuple[str, str, str]]) -> list[CommitCount]:
    """Return the number of commits between two versions, for stacks whose mirror or worktree on this machine has both.

    A repository that the plan names is not read otherwise: the plan may be of another machine, or written by anyone.
    """
    from harness.history.since_previous import CommitCount
    from harness.infra.git_history import Repository
    from harness.launch.stacks.checkout import own_copy

    counts: dict[tuple[str, str], CommitCount] = {}
    for stack, before, after in moves:
        ready = plan.stacks.get(stack)
        if (before, after) in counts or ready is None or not (_HASH.fullmatch(before) and _HASH.fullmatch(after)):
            continue
        for checkout in ready.requested.checkouts:
            place = own_copy(checkout, after, ready.reverted.get(checkout.package, ()))
            if place is None:
                continue
            repository = Repository(place)
            try:
                if not (repository.has(before) and repository.has(after)):
                    continue
                added, removed = repository.between(before, after)
            except HarnessError:  # the copy is damaged; the report still names both commits
                continue
            counts[before, after] = CommitCount(before=before, after=after, added=added, removed=removed)
    return list(counts.values())
