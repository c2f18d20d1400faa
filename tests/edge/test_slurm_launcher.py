"""Submission when Slurm cannot be asked; whole runs are in tests/slurm."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.edge.run_dir import RunDir, append_line, read_events
from harness.edge.slurm_launcher import jobs_of, submit_all
from harness.edge.submitit_executor import ControllerAwayError
from harness.words.run_plan import Allocation


def test_a_submission_that_was_begun_is_not_made_again_while_slurm_cannot_be_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    squeue = tmp_path / "bin" / "squeue"
    squeue.parent.mkdir()
    squeue.write_text("#!/bin/sh\necho 'slurm_load_jobs error: Unable to contact slurm controller' >&2\nexit 1\n")
    squeue.chmod(0o755)
    monkeypatch.setenv("PATH", str(squeue.parent), prepend=":")
    run = RunDir(tmp_path / "run")
    append_line(run.events, {"time": 0.0, "event": "submitting", "job": "1n2r"})
    jobs = jobs_of([Allocation(name="1n2r-0", cells=("a",), array="1n2r")])
    with pytest.raises(ControllerAwayError, match=r"whether it has job run-1\.1n2r; resume later: .* contact slurm"):
        submit_all(run, "run-1", jobs)
    assert [event["event"] for event in read_events(run.events)] == ["submitting"]
