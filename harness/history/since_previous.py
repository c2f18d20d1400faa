"""What changed since the previous run: the verdicts of a report compared with the history as it was when the run ended.

The facts from the history are kept in the run directory (previous.json), so that a report can be made again from files
alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from harness.core.outcomes import ACCEPTED, Outcome
from harness.core.run.report import CellSince, ChangeKind, Report, ReportCell, Since
from harness.history.trends import RunRow
from harness.reporting.compare.runs import Counts, Facts, Moved, differences, stack_facts, with_counts

PREVIOUS_VERSION = 1  # schema_version of previous.json
_MOST = 8  # differences of a stack to show


@dataclass(frozen=True, kw_only=True)
class Point:
    """One earlier run of a cell."""

    run_id: str
    started: str  # ISO, UTC
    version: str  # of its stack, as text


@dataclass(frozen=True, kw_only=True)
class Past:
    """A cell before this run. Runs that did not decide it are skipped."""

    green: bool  # in the last run
    last: Point
    first: Point  # the first run with the same result as all later ones
    before: Point | None  # the last run with the other result
    check: str = ""  # of its first finding in the last run

    @property
    def points(self) -> list[Point]:
        """Return the runs whose stacks show what changed."""
        return [self.last] if self.green else [self.last, self.first, *([self.before] if self.before else [])]


@dataclass(frozen=True, kw_only=True)
class CommitCount:
    """How many commits lie between two of them."""

    before: str
    after: str
    added: int
    removed: int


@dataclass(frozen=True, kw_only=True)
class Previous:
    """The history as it was before the run: previous.json."""

    run_id: str  # of the previous run of the matrix
    started: str
    cells: dict[str, Past]  # by the name under which the history follows a cell
    stacks: dict[str, dict[str, dict[str, str]]]  # run id -> stack -> facts, of runs whose files were still there
    commits: list[CommitCount] = field(default_factory=list)
    schema_version: int = PREVIOUS_VERSION

    @property
    def counts(self) -> Counts:
        """Return (commit before, commit after) -> commits between them."""
        return {(count.before, count.after): Moved(count.added, count.removed) for count in self.commits}


def since(report: Report, row: RunRow, previous: Previous) -> Since:
    """Return cells that fail now or failed before. `row`: of the report, with names and versions of its cells."""
    names = {cell.cell_id: (cell.name, cell.version) for cell in row.cells}
    changed = []
    for cell in report.cells:
        name, version = names[cell.id]
        now = Point(run_id=report.run_id, started=row.started, version=version)
        change = _cell(report, cell, now, previous.cells.get(name), previous)
        changed += [change] if change else []
    order = (ChangeKind.NEWLY_FAILING, ChangeKind.UNJUDGED, ChangeKind.FIXED, ChangeKind.STILL_FAILING)
    changed.sort(key=lambda change: order.index(change.change))
    undecided = sum(cell.outcome is Outcome.ERROR for cell in report.cells)
    return Since(run_id=previous.run_id, started=previous.started, cells=changed, undecided=undecided)


def _cell(report: Report, cell: ReportCell, now: Point, past: Past | None, previous: Previous) -> CellSince | None:
    fails = cell.outcome is Outcome.FAIL
    if past is None:
        return _cell_since(cell, ChangeKind.UNJUDGED, now, None, []) if fails else None
    stack = cell.stack

    def moved(before: Point | None, after: Point) -> list[str]:
        old, new = (_facts(report, previous, point, stack) for point in (before, after))
        return _moved(before, after, old, new, previous.counts)

    if fails and past.green:
        return _cell_since(cell, ChangeKind.NEWLY_FAILING, now, past.last, moved(past.last, now))
    if fails:
        since_last = [f"since the last run: {text}" for text in moved(past.last, now)]
        between = [*moved(past.before, past.first), *since_last]
        check_changed = cell.first is not None and cell.first.check != past.check
        failing = _cell_since(cell, ChangeKind.STILL_FAILING, past.first, past.before, between)
        return replace(failing, earlier_check=past.check) if check_changed else failing
    if not past.green and cell.outcome in ACCEPTED:
        return _cell_since(cell, ChangeKind.FIXED, past.first, past.before, moved(past.last, now))
    return None


def _cell_since(
    cell: ReportCell, change: ChangeKind, first: Point, good: Point | None, between: list[str]
) -> CellSince:
    return CellSince(
        id=cell.id,
        change=change,
        since=first.started,
        since_run=first.run_id,
        good=good.started if good else "",
        good_run=good.run_id if good else "",
        between=between,
    )


def _facts(report: Report, previous: Previous, point: Point | None, stack: str) -> Facts:
    """Return facts of a stack in an earlier run or in this one; empty if unknown."""
    if point is None:
        return {}
    if point.run_id == report.run_id:
        return stack_facts(report.provenance, stack)
    return previous.stacks.get(point.run_id, {}).get(stack, {})


def _moved(before: Point | None, after: Point, old: Facts, new: Facts, counts: Counts) -> list[str]:
    """Return differences of the stack; only those of its version text if the facts of a run are lost."""
    if before is None:
        return []
    if old and new:
        texts = [difference.text for difference in with_counts(differences(old, new), counts)]
        return texts[:_MOST] + ([f"{len(texts) - _MOST} more"] if len(texts) > _MOST else [])
    return [f"{before.version} -> {after.version}"] if before.version != after.version else []


def moves(report: Report, row: RunRow, previous: Previous) -> Iterator[tuple[str, str, str]]:
    """Yield (stack, commit before, commit after) of every moved checkout that `since` may mention."""
    for cell in row.cells:
        past = previous.cells.get(cell.name)
        if past is None:
            continue
        now = Point(run_id=report.run_id, started=row.started, version=cell.version)
        ends = [(past.last, now)] + ([(past.before, past.first)] if past.before and not past.green else [])
        for earlier, later in ends:
            old, new = (_facts(report, previous, point, cell.stack) for point in (earlier, later))
            for difference in differences(old, new):
                if difference.is_move and difference.before and difference.after:
                    yield cell.stack, difference.before, difference.after
