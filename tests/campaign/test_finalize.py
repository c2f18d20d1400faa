"""The exit code of a run that proves nothing as a whole, for users and for `git bisect run`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from harness.campaign.finalize import judge_and_report
from harness.campaign.judging import judge
from harness.campaign.options import RunOptions
from harness.core.outcomes import EXIT_FAIL, EXIT_PASS, EXIT_SKIP, EXIT_UNDECIDED, Outcome
from harness.core.run.records import RankRecord
from harness.core.run.run_dir import RunDir, text_of, write_atomic, write_json
from harness.core.run.run_plan import RunPlan, sealed_text
from harness.core.serialization import from_jsonable, loads
from harness.reporting.bisection import JudgedCell, PointState, judged, state_of
from harness.runs.evidence_files import read_plan
from tests.cli.runs import simulated_run
from tests.judge.written import seal

FOR_GIT, FOR_USERS = RunOptions(record=False, for_git=True), RunOptions(record=False)
Change = Callable[[RunDir], object]


def changed_plan(run: RunDir) -> None:
    values = loads(text_of(run.plan))
    values["tolerances"]["numerics"] = {"document_loss": {"value": 1e5, "unit": None, "direction": None}}
    write_json(run.plan, values)


def without_cells(run: RunDir) -> None:
    """A sealed plan all of whose cells are controls that the harness added."""
    plan = read_plan(run)
    controls = tuple(cell for cell in plan.expansion.cells if cell.role == "control")
    for cell in plan.expansion.cells:
        if cell not in controls:
            run.attempt(cell.id).root.parent.rename(run.root / cell.id)
    write_atomic(run.plan, sealed_text(replace(plan, expansion=replace(plan.expansion, cells=controls))))


def stray_folder(run: RunDir) -> None:
    (run.root / "cells" / "stray").mkdir()


def without_reports(run: RunDir) -> None:
    (run.root / "report.md").mkdir()


def code(run: RunDir, options: RunOptions) -> int:
    return judge_and_report(run, read_plan(run), options).code


def fail(run: RunDir, plan: RunPlan) -> str:
    """Make a cell under test fail; returns its id."""
    cell = next(cell for cell in plan.expansion.cells if cell.role == "cell")
    for rank in range(cell.config.layout.world_size):
        path = run.attempt(cell.id).record(rank)
        record = from_jsonable(RankRecord, loads(text_of(path)))
        record.steps[0].grad_norm = 4.0
        write_json(path, record)
    seal(run.attempt(cell.id))
    return cell.id


def test_a_whole_run_passes(tmp_path: Path) -> None:
    run = simulated_run(tmp_path)
    assert (code(run, FOR_USERS), code(run, FOR_GIT)) == (EXIT_PASS, EXIT_PASS)


@pytest.mark.parametrize("change", [changed_plan, without_cells, stray_folder, without_reports])
def test_a_commit_whose_run_is_undecided_is_skipped(change: Change, tmp_path: Path) -> None:
    run = simulated_run(tmp_path)
    change(run)
    assert (code(run, FOR_USERS), code(run, FOR_GIT)) == (EXIT_UNDECIDED, EXIT_SKIP)


@pytest.mark.parametrize("change", [stray_folder, without_reports])
def test_a_failure_is_certain_in_an_undecided_run(change: Change, tmp_path: Path) -> None:
    run = simulated_run(tmp_path)
    fail(run, read_plan(run))
    change(run)
    assert (code(run, FOR_USERS), code(run, FOR_GIT)) == (EXIT_FAIL, EXIT_FAIL)


def test_a_point_is_neither_good_nor_kept_if_its_run_is_undecided(tmp_path: Path) -> None:
    run = simulated_run(tmp_path)
    plan = read_plan(run)
    failed = fail(run, plan)
    passed = next(cell.id for cell in plan.expansion.cells if cell.role == "cell" and cell.id != failed)
    stray_folder(run)
    report = judge(run, plan)
    why = report.problems[0]
    assert judged(report, passed, "one") == JudgedCell(id=passed, name="one", outcome=Outcome.ERROR, reason=why)
    assert judged(report, failed, "other").outcome is Outcome.FAIL
    assert state_of([judged(report, passed, "one")]) == (PointState.SKIPPED, f"one: {why}")


def test_without_cells_nothing_is_known() -> None:
    assert state_of(()) == (PointState.SKIPPED, "no cell was judged")
