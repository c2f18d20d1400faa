"""Cancelling a run finds its jobs by name."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.core.run.events import Event, JobEnded, NotSubmitted, Refused, Submitted, Submitting, append_event
from harness.core.run.run_dir import RunDir
from harness.core.run.run_plan import Allocation
from harness.launch.launcher import Cancelled
from harness.launch.slurm.client import ControllerAwayError, SlurmClient
from harness.launch.slurm.launcher import cancel_run
from harness.launch.slurm.submit import Patience
from tests.launch.scheduler import AWAY, Clock, Scheduler, fails, says
from tests.launch.slurm.test_submit import row

ALLOCATIONS = [Allocation(name=f"{array}-0", cells=("a",), array=array) for array in ("1n1r", "1n2r")]
FIRST, SECOND = "run-1.1n1r", "run-1.1n2r"


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Scheduler:
    return Scheduler(tmp_path, monkeypatch)


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    return RunDir(tmp_path / "run")


def note(run: RunDir, event: str, array: str, job: str = "") -> None:
    events: dict[str, Event] = {
        "submitting": Submitting(job=array),
        "submitted": Submitted(job=array, allocations={f"{array}-0": job}),
        "not_submitted": NotSubmitted(job=array, why=""),
        "refused": Refused(allocation=f"{array}-0", why=""),
        "job_ended": JobEnded(allocation=f"{array}-0", array=array, job=job, state=""),
    }
    append_event(run.events, events[event])


def cancel(run: RunDir) -> Cancelled:
    clock = Clock()
    patience = Patience(grace_s=10, ask_s=8, clock=clock, sleep=clock.sleep)
    return cancel_run(run, "run-1", ALLOCATIONS, SlurmClient(), patience)


def test_jobs_are_ended_by_number_and_name_and_those_that_are_over_are_counted(run: RunDir, slurm: Scheduler) -> None:
    note(run, "submitted", "1n1r", "5")
    note(run, "submitted", "1n2r", "6")
    slurm.answers("squeue", says(row(5, "COMPLETED", name=FIRST), row(6, "RUNNING", name=SECOND)), "")
    assert cancel(run) == Cancelled(ended=("6",), over=1)
    assert slurm.calls("scancel") == [f"scancel --name={SECOND} 6"]
    assert run.cancelled.exists()


def test_a_job_whose_number_was_never_recorded_is_found_by_its_name(run: RunDir, slurm: Scheduler) -> None:
    note(run, "submitting", "1n1r")
    slurm.answers("squeue", says(row(7, name=FIRST)), says(row(7, "CANCELLED", name=FIRST)))
    assert cancel(run) == Cancelled(ended=("7",), over=0)


def test_a_job_that_appears_while_the_run_is_cancelled_is_ended_too(run: RunDir, slurm: Scheduler) -> None:
    note(run, "submitting", "1n1r")
    slurm.answers("squeue", "", "", says(row(7, name=FIRST)), says(row(7, "CANCELLED", name=FIRST)))
    assert cancel(run) == Cancelled(ended=("7",), over=0)


def test_a_submission_that_never_becomes_a_job_is_waited_for_no_longer_than_the_grace_period(
    run: RunDir, slurm: Scheduler
) -> None:
    note(run, "submitting", "1n1r")
    assert cancel(run) == Cancelled(ended=(), over=0)
    assert len(slurm.calls("squeue")) == 6  # 10 s, a query every 2 s


def test_a_finished_run_is_left_as_it_is(run: RunDir, slurm: Scheduler) -> None:
    """Slurm may have reused its job numbers, so nothing is queried by number."""
    for array, job in (("1n1r", "5"), ("1n2r", "6")):
        note(run, "submitted", array, job)
        note(run, "job_ended", array)
    assert cancel(run) == Cancelled(ended=(), over=2)
    assert slurm.calls("scancel") == []
    assert not run.cancelled.exists()
    assert all(" -j" not in call for call in slurm.calls())


def test_a_run_stays_cancelled_while_slurm_does_not_answer(run: RunDir, slurm: Scheduler) -> None:
    slurm.answers("squeue", fails(AWAY))
    with pytest.raises(ControllerAwayError):
        cancel(run)
    assert run.cancelled.exists()


def test_jobs_that_slurm_does_not_end_are_named(run: RunDir, slurm: Scheduler) -> None:
    note(run, "submitted", "1n1r", "5")
    slurm.answers("squeue", says(row(5, "RUNNING", name=FIRST)))
    done = cancel(run)
    assert done.left == ("5",)
    assert done.text == "1 ended, 0 had ended before, 1 not ended by Slurm yet: 5"
