"""The command line of every request to Slurm, and what becomes of its answer."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from harness.core.errors import InfrastructureError
from harness.infra.command import Answer
from harness.launch.slurm import client as client_module
from harness.launch.slurm.client import (
    ACCOUNTING_AGAIN_S,
    ControllerAwayError,
    JobState,
    NamedJob,
    Pending,
    SlurmClient,
)
from tests.launch.scheduler import AWAY, Clock, Scheduler, fails, says

SACCT = "sacct -n -P -X -o JobID,State,ExitCode,NodeList,Timelimit -j"
SQUEUE = "squeue -h -t all -o %i|%T|%N|%l -j"
NAMED = "squeue -h -t all -o %F|%V|%T|%j --name="
FORGOTTEN = "slurm_load_jobs error: Invalid job id specified"


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Scheduler:
    monkeypatch.chdir(tmp_path)
    Path("1n1r.sbatch").write_text("#!/bin/bash\n", encoding="utf-8")
    return Scheduler(tmp_path, monkeypatch)


def test_members_of_an_array_are_requested_by_the_number_of_the_array_once(slurm: Scheduler) -> None:
    slurm.answers("sacct", says("12_0|COMPLETED|0:0|n1|10:00"))
    slurm.answers("squeue", says("12_3|RUNNING|n2|10:00"))
    assert SlurmClient().states(["12_0", "12_3", "7"]) == {
        "12_0": JobState(state="COMPLETED", exit_code="0:0", nodes="n1", source="sacct", limit_min=10),
        "12_3": JobState(state="RUNNING", nodes="n2", source="squeue", limit_min=10),
        "7": JobState(),
    }
    assert slurm.calls() == [f"{SACCT} 12,7", f"{SQUEUE} 12,7"]


def test_no_job_costs_no_call(slurm: Scheduler) -> None:
    client = SlurmClient()
    assert (client.states([]), client.pending([]), client.named([])) == ({}, {}, [])
    client.cancel("run-1.1n1r", [])
    assert (client.calls, slurm.calls()) == (0, [])


def test_a_silent_job_that_accounting_does_not_know_is_looked_up_in_the_queue(slurm: Scheduler) -> None:
    slurm.answers("squeue", says("3|RUNNING|n1|10:00"))
    assert SlurmClient().states(["3"], silent={"3"})["3"].state == "RUNNING"


def test_a_silent_job_that_accounting_shows_as_ended_has_ended(slurm: Scheduler) -> None:
    slurm.answers("sacct", says("3|CANCELLED|0:0|n1|10:00", "4|RUNNING|0:0|n1|10:00"))
    states = SlurmClient().states(["3", "4"], silent={"3", "4"})
    assert [state.state for state in states.values()] == ["CANCELLED", "UNKNOWN"]
    assert slurm.calls("squeue") == [f"{SQUEUE} 4"]


def test_a_job_that_the_controller_has_forgotten_is_unknown_though_squeue_fails(slurm: Scheduler) -> None:
    slurm.answers("squeue", fails(FORGOTTEN), fails(AWAY))
    assert SlurmClient().states(["3"]) == {"3": JobState(answered=True)}
    assert SlurmClient().states(["3"]) == {"3": JobState(answered=False)}


def test_accounting_that_failed_is_asked_again_five_minutes_later(
    slurm: Scheduler, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock()
    clock.now = 0.0  # the machine has just been started
    monkeypatch.setattr("harness.launch.slurm.client.time.monotonic", clock)
    slurm.answers("sacct", fails("Slurm accounting storage is disabled"), says("3|COMPLETED|0:0|n1|10:00"))
    client = SlurmClient()
    for seconds, calls in ((0, 1), (ACCOUNTING_AGAIN_S - 1, 1), (1, 2)):
        clock.sleep(seconds)
        client.states(["3"])
        assert len(slurm.calls("sacct")) == calls


def test_the_reasons_of_waiting_jobs_are_those_of_the_jobs_that_were_named(slurm: Scheduler) -> None:
    slurm.answers("squeue", says("12_[0-3]|2027-01-31T12:00:00|Priority"))
    assert SlurmClient().pending(["12_1", "7"]) == {"12_1": Pending(reason="Priority", start="2027-01-31T12:00:00")}
    assert slurm.calls() == ["squeue -h -t PENDING -o %i|%S|%r -j 12,7"]
    slurm.answers("squeue", fails(AWAY))
    assert SlurmClient().pending(["12_1"]) == {}


def test_jobs_of_many_names_are_looked_up_in_several_calls_and_returned_in_order(slurm: Scheduler) -> None:
    slurm.answers("squeue", says("9|2027-01-31T10:00:05|PENDING|job-1"), says("10|2027-01-31T10:00:05|RUNNING|job-500"))
    names = [f"job-{number}" for number in range(501)]
    assert SlurmClient().named(names) == [
        NamedJob(number="9", name="job-1", state="PENDING", submitted="2027-01-31T10:00:05"),
        NamedJob(number="10", name="job-500", state="RUNNING", submitted="2027-01-31T10:00:05"),
    ]
    assert slurm.calls() == [f"{NAMED}{','.join(names[:500])}", f"{NAMED}job-500"]


def test_names_cannot_be_looked_up_while_the_controller_is_away(slurm: Scheduler) -> None:
    slurm.answers("squeue", fails(AWAY))
    with pytest.raises(ControllerAwayError, match=r"^Slurm's controller does not answer squeue$"):
        SlurmClient().named(["a"])


@pytest.mark.parametrize(
    ("answer", "number"), [(says("12_0", "12_1", "9"), "12"), (says("7"), "7"), ("", None), (fails("down"), None)]
)
def test_accounting_gives_the_number_of_the_first_job_of_a_name(
    slurm: Scheduler, answer: str, number: str | None
) -> None:
    slurm.answers("sacct", answer)
    assert SlurmClient().accounted("run-1.1n1r") == number
    assert slurm.calls() == ["sacct -n -X -P -S now-30days -o JobID --name=run-1.1n1r"]


def test_jobs_are_cancelled_by_name_and_number(slurm: Scheduler) -> None:
    SlurmClient().cancel("run-1.1n1r", ["7", "12_3"])
    assert slurm.calls() == ["scancel --name=run-1.1n1r 7 12_3"]


def test_only_nodes_that_cannot_run_jobs_are_listed(slurm: Scheduler) -> None:
    slurm.answers("sinfo", says("n1", "n3"), fails(AWAY))
    assert (SlurmClient().unusable("n[1-4]"), SlurmClient().unusable("n[1-4]")) == ("n1,n3", "")
    assert slurm.calls()[0] == "sinfo -h -N -n n[1-4] -t down,drain,fail,no_respond -o %N"


@pytest.mark.parametrize(
    ("hosts", "nodes"),
    [
        (["n1", "node-b.cluster"], "n1,n2"),
        (["node-b", "n2"], "n2"),
        (["n3"], "n3"),
        (["node-z"], ""),
        ([], ""),
    ],
)
def test_hosts_are_found_by_the_name_of_their_node_or_by_their_own(
    slurm: Scheduler, hosts: list[str], nodes: str
) -> None:
    slurm.answers("sinfo", says("n1 node-a", "n2 node-b", "n3"))
    assert SlurmClient().nodes_of_hosts("n[1-3]", hosts) == nodes
    assert slurm.calls() == ["sinfo -h -N -n n[1-3] -o %N %n"] * bool(hosts)


@pytest.mark.parametrize(
    ("request_of", "line"),
    [
        (SlurmClient.partitions, "sinfo -h -o %R|%G|%l"),
        (lambda client: client.accounts("me"), "sacctmgr -n -P show assoc user=me format=Account"),
        (SlurmClient.accounting, "sacct -n -X -P -o JobID"),
        (lambda client: client.version("sbatch"), "sbatch --version"),
        (lambda client: client.version("srun"), "srun --version"),
        (SlurmClient.srun_help, "srun --help"),
    ],
)
def test_a_question_of_the_doctor_gets_the_whole_answer(
    slurm: Scheduler, request_of: Callable[[SlurmClient], Answer], line: str
) -> None:
    program = line.split()[0]
    (slurm.folder / program).write_text((slurm.folder / "sinfo").read_text())
    (slurm.folder / program).chmod(0o755)
    slurm.answers(program, says("one", "two") + fails("three"))
    answer = Answer(text="one\ntwo\n", problem="exit code 1: three", stderr="three\n")
    client = SlurmClient()
    assert request_of(client) == answer
    assert (client.calls, slurm.calls()) == (1, [line])


def test_lists_of_array_members_are_requested_whole(slurm: Scheduler) -> None:
    slurm.answers("sinfo", 'echo "$SLURM_BITSTR_LEN"\n')
    assert SlurmClient().partitions().text == "0\n"


def test_a_command_that_does_not_answer_is_ended(slurm: Scheduler, monkeypatch: pytest.MonkeyPatch) -> None:
    slurm.answers("sinfo", "exec sleep 30\n")
    monkeypatch.setattr(client_module, "CALL_TIMEOUT_S", 0.05)
    assert SlurmClient().partitions() == Answer(problem="no answer within 0.05 s")


def test_a_job_file_is_submitted_once_and_nothing_is_printed(
    slurm: Scheduler, capfd: pytest.CaptureFixture[str]
) -> None:
    slurm.answers("sbatch", says("sbatch: a remark of a plugin", "Submitted batch job 71 on cluster lab"))
    client = SlurmClient()
    client.partitions()
    assert client.submit(Path("1n1r.sbatch")) == "71"
    assert (client.calls, slurm.calls("sbatch")) == (2, ["sbatch 1n1r.sbatch"])
    assert capfd.readouterr() == ("", "")


def test_sbatch_gets_five_minutes_in_the_foreground(slurm: Scheduler) -> None:
    slurm.answers("timeout", "")
    (slurm.folder / "timeout").write_text((slurm.folder / "sbatch").read_text())
    (slurm.folder / "timeout").chmod(0o755)
    with pytest.raises(ControllerAwayError, match=r"^sbatch printed no job number: ''$"):
        SlurmClient().submit(Path("1n1r.sbatch"))
    assert slurm.calls() == ["timeout --foreground 300 sbatch 1n1r.sbatch"]


def submission_error(error: type[InfrastructureError]) -> str:
    """The message with which a submission fails, with exactly this class of error."""
    with pytest.raises(InfrastructureError) as caught:
        SlurmClient().submit(Path("1n1r.sbatch"))
    assert caught.type is error
    return str(caught.value)


@pytest.mark.parametrize("missing", ["sbatch", "srun"])
def test_a_machine_without_slurm_is_named_as_the_reason(
    slurm: Scheduler, monkeypatch: pytest.MonkeyPatch, missing: str
) -> None:
    monkeypatch.setenv("PATH", str(slurm.folder))
    (slurm.folder / missing).unlink()
    assert submission_error(InfrastructureError) == (
        "sbatch and srun are not on PATH: run on a Slurm login node, with Slurm's module loaded"
    )


@pytest.mark.parametrize("code", [1, 123])
def test_a_refusal_has_the_words_of_sbatch(slurm: Scheduler, code: int) -> None:
    slurm.answers("sbatch", f"echo 'Invalid account' >&2\nexit {code}\n")
    assert submission_error(InfrastructureError) == "sbatch refused the job file: Invalid account"


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (fails(AWAY), AWAY),
        ("exit 1\n", "exit code 1"),
        ("echo retrying >&2\nexit 124\n", "retrying"),
        ("printf 'Submitted batch job 7, nommé \\351t\\351\\n'\n", "Job got killed for an unknown reason."),
    ],
)
def test_a_submission_without_a_clear_refusal_may_have_become_a_job(slurm: Scheduler, answer: str, reason: str) -> None:
    slurm.answers("sbatch", answer)
    found = submission_error(ControllerAwayError)
    assert found == f"unknown whether Slurm accepted the job; sbatch: {reason}"


def test_an_answer_without_a_number_is_shown(slurm: Scheduler) -> None:
    slurm.answers("sbatch", says("queued"))
    assert submission_error(ControllerAwayError) == "sbatch printed no job number: 'queued'"
