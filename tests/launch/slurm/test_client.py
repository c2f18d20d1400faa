from __future__ import annotations

from pathlib import Path

import pytest

from harness.launch.slurm import client
from harness.launch.slurm.client import (
    ControllerAwayError,
    JobState,
    Pending,
    SlurmClient,
    members,
    minutes,
    parse_named,
    parse_pending,
    parse_sacct,
    parse_squeue,
)
from tests.launch.scheduler import Scheduler, says


@pytest.mark.parametrize(
    ("shown", "meant"),
    [
        ("240", ["240"]),
        ("240_3", ["240_3"]),
        ("240_[0-3%2]", ["240_0", "240_1", "240_2", "240_3"]),
        ("1_[1%1]", ["1_1"]),
        ("7_[0-2,5,8-9]", ["7_0", "7_1", "7_2", "7_5", "7_8", "7_9"]),
        ("7_[0-8:4]", ["7_0", "7_4", "7_8"]),
        ("7_[0,4-5,32...]", ["7_0", "7_4", "7_5"]),
    ],
)
def test_pending_array_members_are_expanded(shown: str, meant: list[str]) -> None:
    assert members(shown) == meant


def test_sacct_states_lose_their_remarks() -> None:
    found = parse_sacct(
        "12_0|CANCELLED by 0|0:0|n1|00:10:00\n12_1|COMPLETED|0:0|n[2-3]|UNLIMITED\n"
        "12_[2-3%1]|PENDING|0:0|None assigned|1-00:00:00\n"
    )
    assert found["12_0"] == JobState(
        state="CANCELLED", exit_code="0:0", nodes="n1", source="sacct", limit_min=10, cancelled_by="0"
    )
    assert (found["12_1"].ended, found["12_1"].limit_min) == (True, None)
    assert (found["12_3"].ended, found["12_3"].nodes, found["12_3"].limit_min) == (False, "", 1440)


def test_an_empty_or_unknown_output_is_parsed_as_nothing() -> None:
    assert parse_sacct("") == parse_squeue("") == parse_pending("") == {}
    assert parse_named("") == parse_named("slurm_load_jobs error") == []
    assert parse_sacct("Slurm accounting storage is disabled\n") == {}


def test_squeue_knows_finished_jobs_too() -> None:
    found = parse_squeue("5|COMPLETED|n1|10:00\n6_[0-1]|PENDING||1:00:00\n")
    assert (found["5"].ended, found["5"].limit_min) == (True, 10)
    assert (found["6_1"].state, found["6_1"].limit_min) == ("PENDING", 60)


@pytest.mark.parametrize(
    ("limit", "wanted"),
    [("10:00", 10), ("0:30", 1), ("00:10:00", 10), ("2-03:04:05", 3065), ("UNLIMITED", None), ("", None)],
)
def test_time_limits_are_whole_minutes(limit: str, wanted: int | None) -> None:
    assert minutes(limit) == wanted


def test_pending_members_have_their_reasons() -> None:
    found = parse_pending("6_[0-1]|N/A|ReqNodeNotAvail, UnavailableNodes:n[1-4]\n7|2027-01-31T12:00:00|Priority\n")
    assert found["6_1"] == Pending(reason="ReqNodeNotAvail, UnavailableNodes:n[1-4]")
    assert found["7"] == Pending(reason="Priority", start="2027-01-31T12:00:00")


@pytest.mark.parametrize(
    ("state", "words"),
    [
        (JobState(state="TIMEOUT", limit_min=10), "job 7 hit its time limit of 10 min"),
        (JobState(state="TIMEOUT"), "job 7 hit its time limit"),
        (JobState(state="CANCELLED", cancelled_by="0"), "job 7 was cancelled by uid 0"),
        (JobState(state="CANCELLED"), "job 7 was cancelled"),
        (JobState(state="NODE_FAIL"), "job 7 ended as NODE_FAIL"),
    ],
)
def test_the_end_of_a_job_is_a_clause(state: JobState, words: str) -> None:
    assert state.ending("7") == words


@pytest.mark.parametrize("state", ["PENDING", "RUNNING", "COMPLETING", "REQUEUED", "SUSPENDED", "UNKNOWN"])
def test_states_that_may_still_change_do_not_count_as_ended(state: str) -> None:
    assert not JobState(state=state).ended


def test_a_slurm_that_does_not_answer_has_not_lost_the_job(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    client = SlurmClient()
    assert client.states(["7"]) == {"7": JobState(state="UNKNOWN", answered=False)}
    assert client.calls == 2
    client.states(["7"])
    assert client.calls == 3, "sacct is not called for a while after it failed"


class Scripted(SlurmClient):
    """Gives these answers instead of calling commands, for races that a real Slurm cannot be made to show."""

    def __init__(self, **answers: str) -> None:
        super().__init__()
        self.answers = answers

    def _call(self, argv: list[str]) -> str | None:
        self.calls += 1
        return self.answers.get(argv[0])


def test_a_requeued_job_has_not_ended_although_sacct_still_shows_its_old_end() -> None:
    ended = ("PREEMPTED", "NODE_FAIL", "BOOT_FAIL", "FAILED")
    rows = [f"{job}|{state}|0:0|n1|10:00" for job, state in enumerate(ended)] + ["8|PREEMPTED|0:0|n2|10:00"]
    queue = "\n".join(f"{job}|PENDING||10:00" for job in range(len(ended)))
    client = Scripted(sacct="\n".join([*rows, "9|COMPLETED|0:0|n3|10:00"]), squeue=queue)
    states = client.states(["0", "1", "2", "3", "8", "9"])
    assert [state.state for state in states.values()] == ["PENDING"] * 4 + ["PREEMPTED", "COMPLETED"]


def test_sacct_takes_precedence_over_squeue_for_an_ended_job() -> None:
    client = Scripted(sacct="3|FAILED|9:0|n1|10:00\n", squeue="3|FAILED|n1|10:00\n")
    assert client.states(["3"])["3"].exit_code == "9:0"


def test_a_completed_job_costs_one_call() -> None:
    client = Scripted(sacct="5|COMPLETED|0:0|n3|10:00\n")
    assert client.states(["5"])["5"].ended
    assert client.calls == 1


def test_the_controller_decides_on_a_job_whose_agent_is_silent() -> None:
    """Accounting that was down when a job ended shows it as RUNNING for ever."""
    stale = "".join(f"{job}|RUNNING|0:0|n1|10:00\n" for job in (3, 4, 5))
    client = Scripted(sacct=stale, squeue="4|FAILED|n2|10:00\n5|RUNNING|n3|10:00\n")
    states = client.states(["3", "4", "5"], silent={"3", "4", "5"})
    assert [states[job].state for job in ("3", "4", "5")] == ["UNKNOWN", "FAILED", "RUNNING"]
    assert client.states(["3"])["3"].state == "RUNNING"


def test_a_silent_job_keeps_its_state_while_the_controller_is_away() -> None:
    assert Scripted(sacct="3|RUNNING|0:0|n1|10:00\n").states(["3"], silent={"3"})["3"].state == "RUNNING"


def test_unusable_nodes_become_a_list_for_exclude() -> None:
    assert Scripted(sinfo="n1\nn3\n").unusable("n[1-4]") == "n1,n3"
    assert Scripted().unusable("n[1-4]") == ""


def test_jobs_are_found_by_name_in_the_order_of_their_submission() -> None:
    client = Scripted(squeue="12|2027-01-31T10:00:09|PENDING|a|b\n7|2027-01-31T10:00:05|RUNNING|a|b\n")
    assert [(job.number, job.name, job.ended) for job in client.named(["a|b"])] == [
        ("7", "a|b", False),
        ("12", "a|b", False),
    ]
    with pytest.raises(ControllerAwayError):
        Scripted().named(["a"])


def test_many_names_are_queried_in_several_calls() -> None:
    client = Scripted(squeue="")
    assert client.named([f"job-{number}" for number in range(1001)]) == []
    assert client.calls == 3
    assert client.named([]) == []


def job_file(folder: Path, text: str = "#!/bin/bash\n") -> Path:
    file = folder / "1n1r.sbatch"
    file.write_text(text)
    return file


def test_the_job_file_counts_more_than_variables_of_the_shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dropped = ["SBATCH_PARTITION", "SBATCH_JOB_NAME", "SBATCH_GPUS_PER_TASK", "SLURM_NTASKS", "SLURM_CPU_BIND"]
    dropped += ["SBATCH_TIMELIMIT", "SBATCH_WAIT"]
    kept = ["SLURM_CONF", "SBATCH_ACCOUNT", "SBATCH_WCKEY"]
    for name in (*dropped, *kept):
        monkeypatch.setenv(name, "1")
    slurm = Scheduler(tmp_path, monkeypatch)
    slurm.answers("sbatch", f"env > {tmp_path}/seen\n{says('Submitted batch job 5')}")
    assert SlurmClient().submit(job_file(tmp_path, "#!/bin/bash\n#SBATCH --partition=main\n")) == "5"
    seen = {line.partition("=")[0] for line in (tmp_path / "seen").read_text().splitlines()}
    assert seen & {*dropped, *kept} == set(kept)


@pytest.mark.parametrize("answer", ["exit 124\n", "echo retrying >&2\nexit 124\n", "kill -9 $$\n", says("no number")])
def test_an_interrupted_submission_is_unclear_and_not_refused(
    answer: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slurm = Scheduler(tmp_path, monkeypatch)
    slurm.answers("sbatch", answer)
    with pytest.raises(ControllerAwayError):
        SlurmClient().submit(job_file(tmp_path))


def test_sbatch_is_ended_after_its_time_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    slurm = Scheduler(tmp_path, monkeypatch)
    slurm.answers("sbatch", "exec sleep 600\n")
    monkeypatch.setattr(client, "SUBMIT_TIMEOUT_S", 0.1)
    with pytest.raises(ControllerAwayError):
        SlurmClient().submit(job_file(tmp_path))
