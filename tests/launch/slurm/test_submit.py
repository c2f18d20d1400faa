"""Every submission becomes exactly one job, whatever sbatch and squeue answer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from harness.core.errors import InfrastructureError
from harness.core.run.events import Submitting, note, read_lines
from harness.core.run.job_start import Claim
from harness.core.run.run_dir import RunDir, write_json, write_new
from harness.core.run.run_plan import Allocation
from harness.launch.slurm.client import ControllerAwayError, SlurmClient
from harness.launch.slurm.submit import _NOT_SUBMITTED, Patience, Submitter, jobs_of, submitted, unclear_submissions
from tests.launch.scheduler import AWAY, TIMED_OUT, Clock, Scheduler, fails, says

ONE = [Allocation(name="1n2r-0", cells=("a",), array="1n2r")]
NAME = "run-1.1n2r"
DIED = "kill -9 $$"


def row(number: int, state: str = "PENDING", submitted_at: str = "10:00:00", name: str = NAME) -> str:
    return f"{number}|2027-01-31T{submitted_at}|{state}|{name}"


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Scheduler:
    return Scheduler(tmp_path, monkeypatch)


class Bench:
    """A run with job files and a submitter whose waits take no time."""

    def __init__(self, folder: Path, allocations: list[Allocation]) -> None:
        self.run = RunDir(folder / "run")
        self.jobs = jobs_of(allocations)
        self.said: list[str] = []
        self.clock = Clock()
        patience = Patience(away_s=60, grace_s=10, ask_s=2, clock=self.clock, sleep=self.clock.sleep)
        self.submitter = Submitter(self.run, "run-1", SlurmClient(), self.said.append, patience)
        for job in self.jobs:
            file = self.run.submission(job.name, ".sbatch")
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text("#!/bin/bash\n")

    def submit(self) -> tuple[dict[str, str], dict[str, str]]:
        return self.submitter.submit_all(self.jobs)

    def events(self, *kinds: str) -> list[dict[str, Any]]:
        return [event for event in read_lines(self.run.events) if event["event"] in kinds]


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path, ONE)


def test_the_intent_is_noted_before_sbatch_and_the_number_after_it(bench: Bench, slurm: Scheduler) -> None:
    seen = bench.run.root / "seen"
    slurm.answers("sbatch", f"cp '{bench.run.events}' '{seen}'\n{says('Submitted batch job 7')}")
    assert bench.submit() == ({"1n2r-0": "7"}, {})
    (intent,) = read_lines(seen)
    assert (intent["event"], intent["job"], intent["name"]) == ("submitting", "1n2r", NAME)
    assert submitted(bench.run) == {"1n2r-0": "7"}
    assert unclear_submissions(bench.run) == set()
    bench.submit()
    assert len(slurm.calls("sbatch")) == 1


def test_members_of_an_array_have_their_own_ids(tmp_path: Path, slurm: Scheduler) -> None:
    pair = [Allocation(name=f"1n2r-{index}", cells=("a",), array="1n2r", index=index) for index in (0, 3)]
    assert Bench(tmp_path, pair).submit()[0] == {"1n2r-0": "1_0", "1n2r-3": "1_3"}


@pytest.mark.parametrize(
    "unclear",
    [fails(TIMED_OUT), fails(AWAY), says("ok"), DIED, f"{says('Submitted batch job 7')}exit 1"],
    ids=["late", "away", "no number", "died", "no words"],
)
def test_a_job_that_appears_after_an_unclear_answer_is_used_and_not_submitted_again(
    bench: Bench, slurm: Scheduler, unclear: str
) -> None:
    """The controller is away for a while, then does not know the job yet, then does."""
    slurm.answers("sbatch", unclear)
    slurm.answers("squeue", *[fails(AWAY)] * 9, "", "", "", says(row(7)))
    assert bench.submit() == ({"1n2r-0": "7"}, {})
    assert len(slurm.calls("sbatch")) == 1
    assert all(f"--name={NAME}" in call for call in slurm.calls("squeue"))
    assert slurm.calls("scancel") == []


def test_a_job_is_submitted_again_only_after_slurm_has_shown_none_for_the_grace_period(
    bench: Bench, slurm: Scheduler
) -> None:
    slurm.answers("sbatch", fails(TIMED_OUT), says("Submitted batch job 8"))
    slurm.answers("squeue", fails(AWAY), "")
    assert bench.submit() == ({"1n2r-0": "8"}, {})
    order = [call.split()[0] for call in slurm.calls()]
    assert order == ["sbatch", "squeue", *["squeue"] * 6, "sacct", "sbatch"]  # 10 s of grace, a query every 2 s
    assert bench.said
    assert NAME in bench.said[0]


def test_a_job_that_only_accounting_remembers_is_used(bench: Bench, slurm: Scheduler) -> None:
    note(bench.run.events, Submitting(job="1n2r"))
    slurm.answers("sacct", says("9_0", "9_1"))
    assert bench.submit() == ({"1n2r-0": "9"}, {})
    assert slurm.calls("sbatch") == []


def test_a_submission_that_a_killed_launcher_began_is_looked_for_first(bench: Bench, slurm: Scheduler) -> None:
    note(bench.run.events, Submitting(job="1n2r"))
    slurm.answers("squeue", "", says(row(7, "COMPLETED")))
    assert bench.submit() == ({"1n2r-0": "7"}, {})
    assert slurm.calls("sbatch") == []


def test_a_submission_that_was_never_begun_is_not_looked_for(bench: Bench, slurm: Scheduler) -> None:
    bench.submit()
    assert [call.split()[0] for call in slurm.calls()] == ["sbatch"]


def test_nothing_is_submitted_again_while_slurm_does_not_answer(bench: Bench, slurm: Scheduler) -> None:
    note(bench.run.events, Submitting(job="1n2r"))
    slurm.answers("squeue", fails(AWAY))
    with pytest.raises(ControllerAwayError, match=r"whether it has job run-1\.1n2r; continue later"):
        bench.submit()
    assert slurm.calls("sbatch") == []
    assert unclear_submissions(bench.run) == {"1n2r"}


def test_a_controller_that_accepts_no_job_for_long_ends_the_launcher_with_sbatchs_message(
    bench: Bench, slurm: Scheduler
) -> None:
    slurm.answers("sbatch", fails(TIMED_OUT))
    with pytest.raises(ControllerAwayError, match="Socket timed out"):
        bench.submit()
    assert len(slurm.calls("sbatch")) > 2
    assert bench.clock.now >= 1060


def test_of_two_jobs_of_one_name_the_later_one_is_cancelled(bench: Bench, slurm: Scheduler) -> None:
    slurm.answers("sbatch", fails(TIMED_OUT))
    slurm.answers("squeue", says(row(12, submitted_at="10:00:09"), row(7, submitted_at="10:00:05")))
    assert bench.submit() == ({"1n2r-0": "7"}, {})
    assert slurm.calls("scancel") == [f"scancel --name={NAME} 12"]
    (noted,) = bench.events("duplicate")
    assert (noted["job"], noted["kept"]) == ("12", "7")
    assert bench.said[-1] == f"cancelled job 12, a duplicate of job name {NAME}"


def test_of_two_jobs_of_one_name_the_one_that_has_claimed_its_cells_is_kept(bench: Bench, slurm: Scheduler) -> None:
    write_new(bench.run.claim("1n2r-0", 1), Claim(job="12", restart=0, order="1n2r-0"))
    slurm.answers("sbatch", fails(TIMED_OUT))
    slurm.answers("squeue", says(row(7, submitted_at="10:00:05"), row(12, "RUNNING", submitted_at="10:00:09")))
    assert bench.submit() == ({"1n2r-0": "12"}, {})
    assert slurm.calls("scancel") == [f"scancel --name={NAME} 7"]


def test_a_live_job_is_preferred_to_a_cancelled_one_of_its_name(bench: Bench, slurm: Scheduler) -> None:
    slurm.answers("sbatch", fails(TIMED_OUT))
    slurm.answers("squeue", says(row(7, "CANCELLED", submitted_at="10:00:05"), row(12, submitted_at="10:00:09")))
    assert bench.submit() == ({"1n2r-0": "12"}, {})
    assert slurm.calls("scancel") == []


def test_a_job_that_sbatch_refuses_loses_only_its_own_cells(tmp_path: Path, slurm: Scheduler) -> None:
    bench = Bench(tmp_path, [Allocation(name="2n-0", cells=("b",), array="2n"), *ONE])
    slurm.answers("sbatch", fails("sbatch: error: Invalid account"), says("Submitted batch job 5"))
    ids, refused = bench.submit()
    assert ids == {"1n2r-0": "5"}
    assert list(refused) == ["2n-0"]
    assert "Invalid account" in refused["2n-0"]
    assert slurm.calls("squeue") == []
    assert unclear_submissions(bench.run) == set()


def test_when_sbatch_refuses_everything_its_message_ends_the_run(bench: Bench, slurm: Scheduler) -> None:
    slurm.answers("sbatch", fails("sbatch: error: Invalid account"))
    with pytest.raises(InfrastructureError, match="Invalid account"):
        bench.submit()


def test_a_run_that_is_cancelled_between_two_submissions_submits_no_more(tmp_path: Path, slurm: Scheduler) -> None:
    bench = Bench(tmp_path, [*ONE, Allocation(name="2n-0", cells=("b",), array="2n")])
    slurm.answers("sbatch", f"echo '{{}}' > '{bench.run.cancelled}'\n{says('Submitted batch job 5')}")
    assert bench.submit() == ({"1n2r-0": "5"}, {"2n-0": _NOT_SUBMITTED})
    assert len(slurm.calls("sbatch")) == 1
    assert slurm.calls("scancel") == [f"scancel --name={NAME} 5"], "the job that was being submitted"


def test_a_run_that_is_cancelled_while_a_submission_is_unclear_does_not_repeat_it(
    bench: Bench, slurm: Scheduler
) -> None:
    slurm.answers("sbatch", f"echo '{{}}' > '{bench.run.cancelled}'\n{fails(TIMED_OUT)}")
    assert bench.submit() == ({}, {"1n2r-0": _NOT_SUBMITTED})
    assert len(slurm.calls("sbatch")) == 1


def test_a_late_job_that_is_not_followed_is_cancelled_at_the_end(bench: Bench, slurm: Scheduler) -> None:
    slurm.answers("sbatch", says("Submitted batch job 5"))
    bench.submit()
    slurm.answers("squeue", says(row(5, "COMPLETING"), row(6, "COMPLETED"), row(8)))
    bench.submitter.end_all(ONE)
    assert slurm.calls("scancel") == [f"scancel --name={NAME} 8"]


def test_the_job_that_has_claimed_the_cells_is_the_one_that_is_followed(bench: Bench, slurm: Scheduler) -> None:
    slurm.answers("sbatch", says("Submitted batch job 5"))
    bench.submit()
    write_json(bench.run.claim("1n2r-0", 1), Claim(job="8", restart=0, order="1n2r-0"))
    slurm.answers("squeue", says(row(5), row(8, "COMPLETING")))
    bench.submitter.end_all(ONE)
    assert slurm.calls("scancel") == [f"scancel --name={NAME} 5"]


def test_a_job_that_outlives_its_agents_is_waited_for_and_then_cancelled(bench: Bench, slurm: Scheduler) -> None:
    slurm.answers("sbatch", says("Submitted batch job 5"))
    bench.submit()
    slurm.answers("squeue", *([says(row(5, "RUNNING"))] * 3), says(row(5, "COMPLETED")))
    bench.submitter.end_all(ONE)
    assert slurm.calls("scancel") == []
    slurm.answers("squeue", says(row(5, "RUNNING")))
    bench.submitter.end_all(ONE)
    assert slurm.calls("scancel") == [f"scancel --name={NAME} 5"]
    assert bench.said == ["cancelled job 5: it had not ended 60 s after its agents finished"]


def test_duplicates_are_not_cancelled_while_slurm_does_not_answer(bench: Bench, slurm: Scheduler) -> None:
    slurm.answers("squeue", fails(AWAY))
    bench.submitter.end_all(ONE)
    assert slurm.calls("scancel") == []
