"""Reading and judging the cells of a run, in one process and in several."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.app.pipeline.judging import judge_all
from harness.core.run.run_dir import RunDir, write_json
from harness.judge.report.build import report_of
from tests.judge.conftest import broken_run
from tests.judge.reports import build_report
from tests.judge.simulator import TODAY


@pytest.mark.parametrize("processes", [1, 3])
def test_a_run_read_from_disk_is_judged_as_from_memory_however_many_processes(tmp_path: Path, processes: int) -> None:
    plan, evidence = broken_run()
    run = RunDir(tmp_path)
    for name, item in evidence.items():
        if item.config is not None:
            write_json(run.attempt(name).config, item.config)
        for rank, record in item.records.items():
            write_json(run.attempt(name).record(rank), record)
        if item.result is not None:
            write_json(run.attempt(name).result, item.result)
        if item.oracle is not None:
            write_json(run.attempt(name).oracle, item.oracle)
    judged, seen = judge_all(run, plan, today=TODAY, processes=processes)
    assert report_of(plan, judged, timing={}) == build_report(plan, evidence.values(), today=TODAY, timing={})
    assert seen.facts()["devices"] == ["cpu"]
