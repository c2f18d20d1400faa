from __future__ import annotations

from pathlib import Path

import pytest

from harness.core.run.events import Submitted
from harness.core.run.journal import note
from harness.core.run.run_dir import RunDir, write_json
from harness.infra.runs.status import status_text
from tests.infra.scheduler import Scheduler, fails, says
from tests.infra.slurm.test_submissions import plan


def test_the_status_shows_why_jobs_wait_and_that_a_run_was_cancelled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slurm, run = Scheduler(tmp_path, monkeypatch), RunDir(tmp_path / "run")
    note(run.events, Submitted(job="2n1r", allocations={"2n1r-0": "7_0", "2n1r-1": "7_1"}))
    slurm.answers("sacct", fails("Slurm accounting storage is disabled"))
    slurm.answers("squeue", says("7_0|RUNNING|n1|10:00", "7_1|PENDING||10:00"), says("7_1|N/A|PartitionDown"))
    assert status_text(run, plan()).splitlines()[-2:] == [
        "Jobs: 1 PENDING, 1 RUNNING",
        "1 job waits in the queue: PartitionDown (1)",
    ]
    write_json(run.cancelled, {})
    assert "The run was cancelled" in status_text(run, plan()).splitlines()[-1]
