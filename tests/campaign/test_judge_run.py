"""Which cells `harness resume --errors` runs again."""

from __future__ import annotations

from pathlib import Path

from harness.campaign.judging import ended_as_error, judge
from harness.core.outcomes import Outcome
from harness.core.run.records import CellResult, sealed
from harness.core.run.run_dir import RunDir, write_json
from harness.runs.evidence_files import read_plan
from tests.cli.runs import simulated_run


def supervisor_killed(run: RunDir, cell: str) -> None:
    """As its agent writes it; the records of its ranks stay."""
    reason = "the cell's supervisor ended with exit code -9 and wrote no result; see log/supervisor.log"
    result = CellResult(cell=cell, attempt=1, status="error", reason=reason)
    write_json(run.attempt(cell).result, sealed(result))


def test_a_cell_whose_supervisor_was_killed_runs_again_though_its_records_show_no_failure(tmp_path: Path) -> None:
    run = simulated_run(tmp_path)
    plan = read_plan(run)
    assert ended_as_error(run, plan) == set()
    victim = plan.expansion.cells[1].id
    supervisor_killed(run, victim)
    (cell,) = (cell for cell in judge(run, plan).cells if cell.outcome is Outcome.ERROR)
    assert (cell.id, cell.failure, bool(cell.ranks)) == (victim, None, True)
    assert ended_as_error(run, plan) == {victim}


def test_a_cell_that_only_lacks_its_control_does_not_run_again(tmp_path: Path) -> None:
    run = simulated_run(tmp_path)
    plan = read_plan(run)
    control, victim, other = (cell.id for cell in plan.expansion.cells)
    supervisor_killed(run, control)
    assert {cell.outcome for cell in judge(run, plan).cells} == {Outcome.ERROR}
    assert ended_as_error(run, plan) == {control}
    supervisor_killed(run, victim)
    assert ended_as_error(run, plan) == {control, victim}
    run.attempt(control).result.unlink()
    assert other not in ended_as_error(run, plan)
