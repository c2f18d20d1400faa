"""Reading and judging the cells of a run, in one process and in several."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.campaign.judging import judge_all
from harness.core.run.provenance import Provenance
from harness.reporting.build import report_of
from tests.judge.conftest import broken_run
from tests.judge.reports import build_report
from tests.judge.simulator import TODAY
from tests.judge.written import write_run


@pytest.mark.parametrize("processes", [1, 3])
def test_a_run_read_from_disk_is_judged_as_from_memory_however_many_processes(tmp_path: Path, processes: int) -> None:
    plan, evidence = broken_run()
    run = write_run(tmp_path, plan, evidence)
    judged, seen = judge_all(run, plan, today=TODAY, processes=processes)
    assert report_of(plan, judged, timing={}, provenance=Provenance()) == build_report(
        plan, evidence.values(), today=TODAY, timing={}
    )
    assert seen.provenance(plan).devices == ["cpu"]
