"""What is recorded when a job has ended, and the results of its unfinished cells."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.core.run.events import read_lines
from harness.core.run.records import CellResult
from harness.core.run.run_dir import RunDir, write_json
from harness.core.run.run_plan import Allocation
from harness.launch.slurm.client import JobState
from harness.launch.slurm.follow import Ended, close, close_refused, unfinished
from harness.launch.slurm.submit import order_allocation
from harness.runs.evidence_files import read_result
from harness.runs.logs import job_logs

ONE = Allocation(name="1n2r-0", cells=("a", "b"), array="1n2r")


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    made = RunDir(tmp_path)
    order_allocation(made, ONE, {"a": 1, "b": 1}, parallel_ranks=2)
    write_json(made.attempt("b").result, CellResult(cell="b", attempt=1, status="completed"))
    return made


@pytest.mark.parametrize(
    ("state", "reason"),
    [
        (
            JobState(state="TIMEOUT", exit_code="0:0", nodes="n1", source="sacct", limit_min=10),
            "Slurm job 7 hit its time limit of 10 min before the cell ended: TIMEOUT (exit 0:0) on n1",
        ),
        (
            JobState(state="CANCELLED", exit_code="0:0", source="sacct", cancelled_by="1000"),
            "Slurm job 7 was cancelled by uid 1000 before the cell ended: CANCELLED (exit 0:0)",
        ),
        (
            JobState(state="FAILED", exit_code="28:0", nodes="n1", source="sacct"),
            "Slurm job 7 ended before the cell did: FAILED (exit 28:0) on n1; the run directory's disk was full",
        ),
        (JobState(), "Slurm job 7 ended before the cell did: unknown to Slurm"),
        (
            JobState(state="NODE_FAIL", nodes="n1", source="squeue"),
            "Slurm job 7 ended before the cell did: NODE_FAIL (exit ?) on n1",
        ),
        (
            JobState(state="RUNNING", nodes="n1", source="squeue"),
            "Slurm job 7 ended before the cell did: RUNNING (exit ?) on n1",
        ),
    ],
)
def test_a_cell_without_a_result_says_how_its_job_ended(run: RunDir, state: JobState, reason: str) -> None:
    close(run, Ended(ONE, "7", state, finished=False))
    left, kept = read_result(run, "a"), read_result(run, "b")
    assert left is not None
    assert kept is not None
    assert (left.status, left.reason) == ("error", reason)
    assert kept.status == "completed"
    (event,) = read_lines(run.events)
    assert (event["event"], event["job"], event["allocation"]) == ("job_ended", "7", "1n2r-0")
    assert event["words"] == (state.ending("7") if state.ended else "")
    assert event["state"] == (state.state if state.ended else "")
    assert unfinished(run, [ONE]) == []


def test_logs_of_a_job_that_has_ended_hold_no_secret(run: RunDir, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hunter2-hunter2")
    out, err = job_logs(run, "1n2r", "7")
    out.write_text("token hunter2-hunter2\n")
    err.write_text("cloning https://me:swordfish@host/x\n")
    close(run, Ended(ONE, "7", JobState(), finished=False))
    assert (out.read_text(), err.read_text()) == ("token ***\n", "cloning https://***@host/x\n")


def test_a_refused_allocation_is_not_submitted_by_a_later_launcher(run: RunDir) -> None:
    assert unfinished(run, [ONE]) == [ONE]
    close_refused(run, {"1n2r-0": "Invalid account"})
    assert unfinished(run, [ONE]) == []
    left = read_result(run, "a")
    assert left is not None
    assert left.reason == "Invalid account"
