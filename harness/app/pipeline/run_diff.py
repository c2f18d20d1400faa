"""Changes since the previous run, from the history: kept in the run directory and shown in the report."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from harness.core.errors import HarnessError, InputError
from harness.core.run.run_dir import RunDir, text_of, write_json
from harness.infra import screen

if TYPE_CHECKING:
    from harness.core.run.run_plan import RunPlan
    from harness.infra.history.database import CellHistory, History
    from harness.judge.compare.since_previous import CommitCount, Past, Previous
    from harness.judge.history.rows import RunRow
    from harness.judge.report.model import Report

FILE = "previous.json"
_HASH = re.compile(r"[0-9a-f]{40,64}")


def with_run_diff(directory: RunDir, plan: RunPlan, report: Report, history: Path | None) -> Report:
    """The report with the changes since the previous run, if one is known.

    The history is queried once and its answer kept in the run directory; `history` None: it is not queried. An error is
    printed to stderr, and the report is returned unchanged.
    """
    from harness.judge.compare.since_previous import since
    from harness.judge.history.rows import run_row

    try:
        row = run_row(report)
        previous = _kept(directory) or _query(directory, plan, report, row, history)
        return replace(report, since=since(report, row, previous)) if previous else report
    except (HarnessError, OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        screen.err(f"harness: {report.run_id}: changes since the previous run are not shown: {error}")
        return report


def _kept(directory: RunDir) -> Previous | None:
    from harness.core.serialization import from_jsonable, loads
    from harness.judge.compare.since_previous import Previous

    path = directory.root / FILE
    return from_jsonable(Previous, loads(text_of(path))) if path.exists() else None


def _query(directory: RunDir, plan: RunPlan, report: Report, row: RunRow, file: Path | None) -> Previous | None:
    from harness.infra.history.database import is_there, opened
    from harness.judge.compare.since_previous import Previous, moves

    if file is None or not is_there(file):
        return None
    with opened(file, write=False) as history:
        last = history.previous(row.matrix, row.device, row.started)
        if last is None:
            return None
        earlier = history.cell_histories(row.matrix, row.device, row.started)
        cells = {name: _past(cell) for name, cell in earlier.items()}
        points = {point.run_id for past in cells.values() for point in past.points}
        stacks = _stacks(history, points, {cell.stack for cell in row.cells})
    previous = Previous(run_id=last[0], started=last[1], cells=cells, stacks=stacks)
    previous = replace(previous, commits=count_commits(plan, moves(report, row, previous)))
    write_json(directory.root / FILE, previous, indent=1)
    return previous


def _past(cell: CellHistory) -> Past:
    from harness.judge.compare.since_previous import Past, Point

    before = Point(run_id=cell.before_run, started=cell.before, version=cell.before_version)
    return Past(
        green=cell.green,
        last=Point(run_id=cell.run_id, started=cell.started, version=cell.version),
        first=Point(run_id=cell.since_run, started=cell.since, version=cell.since_version),
        before=before if cell.before_run else None,
        check=cell.check,
    )


def _stacks(history: History, runs: Iterable[str], stacks: set[str]) -> dict[str, dict[str, dict[str, str]]]:
    """Contents of the stacks of earlier runs, from their reports where those still exist."""
    from harness.judge.compare.stack_changes import stack_facts
    from harness.judge.report.render_json import read_provenance

    found = {}
    for run in sorted(runs):
        directory = history.directory(run)
        path = directory and directory / "report.json"
        if path and path.exists():
            try:
                provenance = read_provenance(text_of(path))
            except InputError:  # of another version of the harness; the history still has the stack's version
                continue
            found[run] = {stack: stack_facts(provenance, stack) for stack in sorted(stacks)}
    return found


def count_commits(plan: RunPlan, moves: Iterable[tuple[str, str, str]]) -> list[CommitCount]:
    """Number of commits between two versions, for stacks whose mirror or worktree on this machine has both.

    A repository that the plan names is not read otherwise: the plan may be of another machine, or written by anyone.
    """
    from harness.infra.git_history import Repository
    from harness.infra.stacks.checkout import own_copy
    from harness.judge.compare.since_previous import CommitCount

    found: dict[tuple[str, str], CommitCount] = {}
    for stack, before, after in moves:
        ready = plan.stacks.get(stack)
        if (before, after) in found or ready is None or not (_HASH.fullmatch(before) and _HASH.fullmatch(after)):
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
            found[before, after] = CommitCount(before=before, after=after, added=added, removed=removed)
    return list(found.values())
