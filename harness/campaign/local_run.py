"""A run on this machine. After an interruption the finished cells are judged; a resume makes new attempts."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from pathlib import Path

from harness.campaign import judging, launch, plan_run
from harness.campaign.finalize import RunResult, history_file, judge_and_report
from harness.campaign.judging import EnoughFailures, LiveJudging
from harness.campaign.options import RunOptions
from harness.campaign.progress import Expected
from harness.campaign.reports import import_ahead
from harness.core.errors import HarnessError, InputError, InterruptedRun, Problem
from harness.core.outcomes import EXIT_INTERRUPTED
from harness.core.run.events import RunStopped, note
from harness.core.run.report import ReportCell
from harness.core.run.run_dir import RunDir, refuse_links_below, write_atomic, write_json
from harness.core.run.run_plan import PlannedCell, RunPlan
from harness.core.stack import ReadyStack
from harness.core.text import counted
from harness.infra import screen
from harness.infra.process import signal_name, tracebacks_in
from harness.infra.screen import relative_path
from harness.launch.local import AgentAhead, LocalLauncher
from harness.launch.stacks.prepare import moved_since
from harness.runs.evidence_files import newest, read_result
from harness.runs.lock import only_launcher

_MOVED = "restore it, or start a new run: cells of one run are compared with each other"


def start(
    directory: RunDir, planned: plan_run.Planned, options: RunOptions, ahead: AgentAhead | None = None
) -> RunResult:
    """Run a plan on this machine and judge it. On a signal: InterruptedRun, after the finished cells are judged."""
    plan = planned.plan
    with tracebacks_in(directory.root), only_launcher(directory):
        plan_run.write_run(directory, planned)
        enough = _launch(directory, plan, plan, {}, options, ahead)
    return _judge(directory, plan, options, enough=enough)


def resume(directory: RunDir, plan: RunPlan, options: RunOptions, *, errors: bool) -> RunResult:
    """Run the cells that have no result, as new attempts, and judge all. `errors`: also those that ended as ERROR."""
    with tracebacks_in(directory.root), only_launcher(directory):
        requested = _without_result(directory, plan) | (_errors(directory, plan) if errors else set())
        again = with_partners(plan.expansion.cells, requested)
        if again:
            refuse_changed_code(directory, plan.stacks, _MOVED)
        attempts = _new_attempts(directory, [cell for cell in plan.expansion.cells if cell.id in again])
        screen.out(f"running {len(again)} of {len(plan.expansion.cells)} cells")
        enough = bool(attempts) and _launch(directory, plan, _of(plan, attempts), attempts, options)
    return _judge(directory, plan, options, enough=enough)


def refuse_changed_code(directory: RunDir, stacks: Mapping[str, ReadyStack], hint: str) -> None:
    """Raise InputError when a stack's code has changed since the run's first cells."""
    if moved := [Problem(message=change, file=str(directory.root), hint=hint) for change in moved_since(stacks)]:
        raise InputError(moved)


def _judge(directory: RunDir, plan: RunPlan, options: RunOptions, *, enough: bool) -> RunResult:
    """Judge the run. `enough`: --maxfail ended it; it is recorded in the history once the other cells have run."""
    unfinished = _without_result(directory, plan) if enough else set()
    try:
        result = judge_and_report(directory, plan, replace(options, record=options.record and not unfinished))
        if enough:
            screen.out(stopped(directory, plan, unfinished, options.maxfail or 0))
        return result
    except KeyboardInterrupt as error:
        again = f"harness report {shlex.quote(relative_path(directory.root))}"
        raise InterruptedRun(
            f"ended by {signal_name(error)} while the run was judged; every cell has ended, so judge it with: {again}"
        ) from error


def _launch(
    directory: RunDir,
    plan: RunPlan,
    part: RunPlan,
    attempts: Mapping[str, int],
    options: RunOptions,
    ahead: AgentAhead | None = None,
) -> bool:
    """Run the cells of `part`; return whether --maxfail ended the run before all of them had ended."""

    def judged(failed: Callable[[ReportCell], None]) -> Callable[[str], None]:
        return LiveJudging(directory, plan, failed, options.maxfail).ended

    try:
        times = expected_times(part, history_file(options.history, directory.root.parent))
        import_ahead()
        launch.launch(directory, part, LocalLauncher(attempts, ahead), judged, times)
    except EnoughFailures:
        unfinished = _without_result(directory, plan)
        why = f"the run was stopped after {counted(options.maxfail or 0, 'failure')} (--maxfail)"
        note(directory.events, RunStopped(why=why, cells=tuple(sorted(unfinished))))
        return True
    except KeyboardInterrupt as error:
        unfinished = _without_result(directory, plan)
        note(
            directory.events,
            RunStopped(why=f"the run was ended by {signal_name(error)}", cells=tuple(sorted(unfinished))),
        )
        judge_and_report(directory, plan, replace(options, record=False, notify=()), code=EXIT_INTERRUPTED)
        raise InterruptedRun(interruption(directory, plan, unfinished, signal_name(error))) from error
    return False


def interruption(directory: RunDir, plan: RunPlan, unfinished: Collection[str], signal: str) -> str:
    """Return the message after a signal: what is left, and the command that continues.

    `unfinished`: cells without a result.
    """
    run, cells = shlex.quote(relative_path(directory.root)), len(plan.expansion.cells)
    if not unfinished:
        return (
            f"ended by {signal}: all {cells} cells had ended and are judged; record the run in the history with: "
            f"harness resume {run}"
        )
    judged = cells - len(unfinished)
    return f"ended by {signal}: {judged} of {cells} cells are judged; the others run with: harness resume {run}"


def stopped(directory: RunDir, plan: RunPlan, unfinished: Collection[str], most: int) -> str:
    """Return how many cells --maxfail left, which the report lists as NOT_RUN, and the command that runs them."""
    what = (
        f"stopped after {counted(most, 'failure')} (--maxfail): {len(unfinished)} of {len(plan.expansion.cells)} cells"
    )
    return f"{what} did not run\n  run them with: harness resume {shlex.quote(relative_path(directory.root))}"


def _without_result(directory: RunDir, plan: RunPlan) -> set[str]:
    return {cell.id for cell in plan.expansion.cells if read_result(directory, cell.id) is None}


def _errors(directory: RunDir, plan: RunPlan) -> set[str]:
    """Return the cells of usable stacks that ended as ERROR, without those that only lack their control."""
    usable = {cell for allocation in plan.allocations for cell in allocation.cells}
    return judging.ended_as_error(directory, plan) & usable


def with_partners(cells: Collection[PlannedCell], wanted: Collection[str]) -> set[str]:
    """Return the wanted cells and those interleaved with them, since neither side can be timed alone."""
    pairs = {cell.config.timing.turns for cell in cells if cell.id in wanted} - {""}
    return set(wanted) | {cell.id for cell in cells if cell.config.timing.turns in pairs}


def _new_attempts(directory: RunDir, cells: Collection[PlannedCell]) -> dict[str, int]:
    """Write the configuration of each cell's next attempt.

    Return the attempt's number by cell. An attempt that never began is reused.

    Interleaved cells synchronise in a folder named after the attempt's number, so they get the same number.
    """
    numbers: dict[str, int] = {}
    for cell in cells:
        last = newest(directory, cell.id)
        attempt = directory.attempt(cell.id, last)
        begun = attempt.result.exists() or (attempt.root / "log").exists()
        numbers[cell.id] = last + 1 if begun else last
        if begun and not attempt.result.exists():
            write_atomic(attempt.interrupted, "")
    highest: dict[str, int] = {}
    for cell in cells:
        pair = cell.config.timing.turns or cell.id
        highest[pair] = max(highest.get(pair, 1), numbers[cell.id])
    for cell in cells:
        number = highest[cell.config.timing.turns or cell.id]
        for skipped in range(numbers[cell.id], number):  # attempts are counted without gaps
            write_atomic(directory.attempt(cell.id, skipped).interrupted, "")
        numbers[cell.id] = number
        refuse_links_below(directory.attempt(cell.id, number).root)
        write_json(directory.attempt(cell.id, number).config, cell.config)
    return numbers


def _of(plan: RunPlan, cells: Collection[str]) -> RunPlan:
    """Return the plan reduced to some of its cells."""
    parts = [
        replace(allocation, cells=tuple(cell for cell in allocation.cells if cell in cells))
        for allocation in plan.allocations
        if any(cell in cells for cell in allocation.cells)
    ]
    cells_left = tuple(cell for cell in plan.expansion.cells if cell.id in cells)
    return replace(plan, allocations=tuple(parts), expansion=replace(plan.expansion, cells=cells_left))


def expected_times(plan: RunPlan, file: Path) -> Expected:
    """Return the times of earlier runs, which only serve an estimate: empty where the history is missing, cannot be
    read, or knows none of the cells.
    """
    from harness.history.database import opened
    from harness.history.queries import durations

    if not file.exists():
        return Expected()
    try:
        with opened(file, write=False) as history:
            rows = list(history.rows(durations([cell.id for cell in plan.expansion.cells])))
    except (HarnessError, OSError):
        return Expected()
    runs = {row["run"]: (row["cells_s"], row["wall_s"]) for row in rows if row["wall_s"]}
    wall = sum(wall_s for _, wall_s in runs.values())
    at_once = sum(cells for cells, _ in runs.values()) / wall if wall else 1.0
    return Expected(cells={row["cell_id"]: row["seconds"] for row in rows}, at_once=at_once)
