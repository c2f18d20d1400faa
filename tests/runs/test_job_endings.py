from __future__ import annotations

from pathlib import Path

from harness.core.run.events import JobEnded, note
from harness.core.run.run_dir import RunDir, write_json
from harness.core.run.run_plan import Allocation
from harness.judge.failures.classification import JobEnding
from harness.launch.slurm.submit import order_allocation
from harness.runs.logs import read_job_endings


def _ended(run: RunDir, name: str, cells: dict[str, int], job: str, state: str) -> None:
    order_allocation(run, Allocation(name=name, cells=tuple(cells)), cells, parallel_ranks=1)
    for cell, attempt in cells.items():
        write_json(run.attempt(cell, attempt).config, {})
    words = f"job {job} ended as {state}" if state else ""
    note(run.events, JobEnded(allocation=name, array="1n1r", job=job, state=state, words=words))


def test_a_cell_has_the_ending_of_the_job_of_its_newest_attempt(tmp_path: Path) -> None:
    run = RunDir(tmp_path)
    _ended(run, "1n1r-0", {"a": 1, "b": 1}, "7_0", "NODE_FAIL")
    _ended(run, "1n1r-0-again2", {"a": 2}, "9", "")
    run.submission("1n1r", ".7_0.out").write_text("")
    run.submission("1n1r", ".7_0.err").write_text("slurmstepd: error: *** DUE TO NODE FAILURE\n")
    endings = read_job_endings(run, {"a": None, "b": None, "c": None})
    log = "slurmstepd: error: *** DUE TO NODE FAILURE"
    assert endings == {
        "a": JobEnding(),
        "b": JobEnding(state="NODE_FAIL", words="job 7_0 ended as NODE_FAIL", log=log, path="submissions/1n1r.7_0.err"),
    }


def test_a_run_on_this_machine_has_no_jobs(tmp_path: Path) -> None:
    assert read_job_endings(RunDir(tmp_path), {"a": None}) == {}
