from __future__ import annotations

from pathlib import Path

import pytest

from harness.core.run.events import CellStarted, Submitted, note
from harness.core.run.run_dir import RunDir, write_json
from harness.core.run.run_plan import Allocation
from harness.launch.status import status_of
from tests.launch.scheduler import Scheduler, fails, says
from tests.launch.slurm.test_retry import Bench
from tests.launch.slurm.test_submissions import plan


def test_the_status_shows_why_jobs_wait_and_that_a_run_was_cancelled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slurm, run = Scheduler(tmp_path, monkeypatch), RunDir(tmp_path / "run")
    note(run.events, Submitted(job="2n1r", allocations={"2n1r-0": "7_0", "2n1r-1": "7_1"}))
    slurm.answers("sacct", fails("Slurm accounting storage is disabled"))
    slurm.answers("squeue", says("7_0|RUNNING|n1|10:00", "7_1|PENDING||10:00"), says("7_1|N/A|PartitionDown"))
    assert status_of(run, plan()).text.splitlines()[-2:] == [
        "Jobs: 1 PENDING, 1 RUNNING",
        "1 job waits in the queue: PartitionDown (1)",
    ]
    write_json(run.cancelled, {})
    assert "The run was cancelled" in status_of(run, plan()).text.splitlines()[-1]


def test_a_cell_runs_in_the_job_of_its_newest_attempt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    slurm, bench = Scheduler(tmp_path, monkeypatch), Bench(tmp_path)
    (cell,) = bench.narrow.cells

    def shown() -> list[str]:
        return [line.strip() for line in status_of(bench.run, bench.plan).text.splitlines() if cell in line]

    def begin(allocation: Allocation, attempt: int, job: str) -> None:
        note(bench.run.events, Submitted(job=allocation.array, allocations={allocation.name: job}))
        note(bench.run.agent_journal(allocation.name, 0), CellStarted(cell=cell, attempt=attempt, ranks=1))

    write_json(bench.run.plan, bench.plan)
    begin(bench.narrow, 1, "7")
    slurm.answers("sacct", says("7|RUNNING|0:0|n1|10:00"))
    assert shown() == [f"running: {cell}"]
    slurm.answers("sacct", says("7|NODE_FAIL|0:0|n1|10:00", "8|RUNNING|0:0|n2|10:00"))
    assert shown() == [f"interrupted: {cell}"]
    (second,) = bench.again(bench.narrow, "NODE_FAIL")
    assert shown() == [], "the new attempt waits"
    begin(second, 2, "8")
    assert shown() == [f"running: {cell}"]
