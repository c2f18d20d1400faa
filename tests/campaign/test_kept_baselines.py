"""The baselines that a run keeps: a missing, damaged or changed file leaves the run and its cells undecided."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from harness.campaign.judging import baseline_problem, judge, keep_baselines, read_baselines
from harness.core.outcomes import Outcome
from harness.core.run.records import RankRecord
from harness.core.run.run_dir import RunDir, text_of, write_atomic, write_json
from harness.core.run.run_plan import BaselineRequest, RunPlan, sealed_text
from harness.core.serialization import from_jsonable, loads
from harness.judge.stats.baseline import Baseline
from harness.runs.evidence_files import read_plan
from tests.cli.runs import simulated_run
from tests.judge.written import seal


def nightly(parent: Path) -> tuple[RunDir, RunPlan]:
    """A run whose matrix asks for a comparison with earlier runs, of which there are none."""
    run = simulated_run(parent)
    plan = replace(read_plan(run), history=BaselineRequest(runs=20))
    write_atomic(run.plan, sealed_text(plan))
    for cell in plan.expansion.cells:
        for rank in range(cell.config.layout.world_size):
            path = run.attempt(cell.id).record(rank)
            record = from_jsonable(RankRecord, loads(text_of(path)))
            for step in record.steps:
                step.busy_s = 0.4
            write_json(path, record)
        seal(run.attempt(cell.id))
    return run, plan


def without(run: RunDir) -> None:
    run.report("baseline.json").unlink()


def without_a_cell(run: RunDir) -> None:
    values = loads(text_of(run.report("baseline.json")))
    values["cells"].popitem()
    write_json(run.report("baseline.json"), values)


def without_a_seal(run: RunDir) -> None:
    values = loads(text_of(run.report("baseline.json")))
    write_json(run.report("baseline.json"), values["cells"])


def cut(run: RunDir) -> None:
    run.report("baseline.json").write_text("{", encoding="utf-8")


def test_a_run_without_earlier_ones_passes(tmp_path: Path) -> None:
    run, plan = nightly(tmp_path)
    keep_baselines(run, plan, tmp_path / "history.sqlite")
    assert baseline_problem(run, plan) == ""
    assert read_baselines(run) == {cell.id: Baseline(runs=20) for cell in plan.expansion.cells}
    assert judge(run, plan).verdict == "pass"


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (without, "is missing, so times cannot be compared"),
        (without_a_cell, "it was changed after it was written"),
        (without_a_seal, "cannot be read: 'cells'"),
        (cut, "cannot be read: "),
    ],
)
def test_a_run_whose_baseline_is_damaged_is_undecided(
    change: Callable[[RunDir], object], why: str, tmp_path: Path
) -> None:
    run, plan = nightly(tmp_path)
    keep_baselines(run, plan, tmp_path / "history.sqlite")
    change(run)
    report = judge(run, plan)
    assert why in report.problems[0]
    assert report.verdict == "error"
    reason = "times cannot be compared with earlier runs: baseline.json has no entry of this cell"
    assert {(cell.outcome, cell.reason) for cell in report.cells if not cell.control} == {(Outcome.ERROR, reason)}


def test_a_run_that_is_not_compared_needs_no_baseline(tmp_path: Path) -> None:
    run = simulated_run(tmp_path)
    plan = read_plan(run)
    keep_baselines(run, plan, tmp_path / "history.sqlite")
    assert not run.report("baseline.json").exists()
    assert judge(run, plan).verdict == "pass"
