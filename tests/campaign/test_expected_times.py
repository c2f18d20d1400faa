"""Expected times of the cells of a plan, from histories of simulated runs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from harness.campaign.local_run import expected_times
from harness.campaign.progress import Expected
from harness.core.run.run_plan import RunPlan
from harness.history.database import opened
from harness.runs.evidence_files import read_plan
from tests.cli.runs import simulated_run
from tests.history.history_runs import run_of, timed


@pytest.fixture
def plan(tmp_path: Path) -> RunPlan:
    return read_plan(simulated_run(tmp_path))


def test_the_newest_time_of_each_cell_and_how_many_ran_at_once(tmp_path: Path, plan: RunPlan) -> None:
    known = plan.expansion.cells[1].id
    file = tmp_path / "history.sqlite"
    with opened(file, write=True) as history:
        for day, seconds in ((1, 9.0), (2, 8.0)):
            row = timed(run_of(day), {"wall_s": seconds})
            mine = replace(row.cells[0], cell_id=known)
            other = replace(row.cells[0], cell_id="another", name="another")
            history.record(replace(row, cells=(mine, other), wall_s=4.0), tmp_path)
    assert expected_times(plan, file) == Expected(cells={known: 8.0}, at_once=4.0)


def test_no_history_and_one_that_cannot_be_read_say_nothing(tmp_path: Path, plan: RunPlan) -> None:
    assert expected_times(plan, tmp_path / "missing.sqlite") == Expected()
    broken = tmp_path / "broken.sqlite"
    broken.write_text("not a database")
    assert expected_times(plan, broken) == Expected()
