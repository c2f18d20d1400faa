"""Which cells run again after a job has ended, how often, and where."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from harness.core.run.events import Failed, JobEnded, note, read_lines
from harness.core.run.job_start import Claim
from harness.core.run.records import CellResult, RankEnding
from harness.core.run.run_dir import RunDir, write_json, write_new
from harness.core.run.run_plan import Allocation, newest_work_order
from harness.launch.slurm.client import JobState, SlurmClient
from harness.launch.slurm.follow import Ended, allocations_of, keep_from_starting, retry, retry_requested, unfinished
from harness.launch.slurm.submit import order_allocation, write_submissions
from tests.launch.scheduler import Scheduler, says
from tests.launch.slurm.test_submissions import LAB, LAUNCH, TEMPLATE, plan


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Scheduler:
    return Scheduler(tmp_path, monkeypatch)


class Bench:
    """A run of three cells: one on one node, two in sequence on two nodes."""

    def __init__(self, folder: Path) -> None:
        self.run, self.plan = RunDir(folder / "run"), plan()
        write_submissions(self.run, self.plan, LAB, TEMPLATE, LAUNCH)
        for cell in self.plan.expansion.cells:
            write_json(self.run.attempt(cell.id).config, cell.config)
        self.narrow, self.wide = self.plan.allocations[:2]
        assert (self.narrow.nodes, self.wide.nodes) == (1, 2)

    def ended(self, allocation: Allocation, state: str, nodes: str = "n1", exit_code: str = "") -> Ended:
        known = JobState(state=state, nodes=nodes, exit_code=exit_code, source="sacct")
        return Ended(allocation, "7", known, finished=False)

    def again(self, allocation: Allocation, state: str, nodes: str = "n1", exit_code: str = "") -> list[Allocation]:
        return retry(self.run, self.plan, self.ended(allocation, state, nodes, exit_code), SlurmClient())

    def job_file(self, allocation: Allocation) -> str:
        return self.run.submission(allocation.name, ".sbatch").read_text()


@pytest.fixture
def bench(tmp_path: Path, slurm: Scheduler) -> Bench:
    return Bench(tmp_path)


def why(bench: Bench) -> str:
    """Why the newest retry was made."""
    return str(read_lines(bench.run.events)[-1]["why"])


@pytest.mark.parametrize("state", ["NODE_FAIL", "BOOT_FAIL", "PREEMPTED"])
def test_cells_of_a_job_that_the_cluster_ended_run_again_as_a_new_attempt(bench: Bench, state: str) -> None:
    (made,) = bench.again(bench.narrow, state)
    (cell,) = bench.narrow.cells
    assert made.name == f"{bench.narrow.name}-again2"
    assert newest_work_order(bench.run, made.name).attempts == {cell: 2}
    assert bench.run.attempt(cell, 2).config.read_text() == bench.run.attempt(cell).config.read_text()
    assert why(bench) == f"job 7 ended as {state} on n1"
    assert allocations_of(bench.run, bench.plan) == [*bench.plan.allocations, made]


@pytest.mark.parametrize("state", ["CANCELLED", "TIMEOUT", "FAILED", "OUT_OF_MEMORY", "COMPLETED", "UNKNOWN"])
def test_other_ends_are_not_retried(bench: Bench, state: str) -> None:
    assert bench.again(bench.narrow, state) == []


def test_a_full_disk_is_retried(bench: Bench) -> None:
    assert bench.again(bench.narrow, "FAILED", exit_code="28:0") != []
    assert why(bench) == "job 7 ended as FAILED on n1: the run directory's disk was full"
    assert bench.again(bench.wide, "FAILED", exit_code="2:0") == []


def test_a_job_that_never_got_a_node_ended_on_no_node(bench: Bench) -> None:
    assert len(bench.again(bench.narrow, "PREEMPTED", nodes="")) == 1
    assert why(bench) == "job 7 ended as PREEMPTED on no node"


def test_a_retry_is_a_job_of_its_own_and_no_member_of_the_array(bench: Bench) -> None:
    member = replace(bench.narrow, array="2n1r", index=1)
    name = f"{member.name}-again2"
    assert bench.again(member, "NODE_FAIL") == [replace(member, name=name, array=name, index=0)]


def test_a_retry_that_a_killed_launcher_has_recorded_is_not_made_twice(bench: Bench) -> None:
    assert len(bench.again(bench.narrow, "NODE_FAIL")) == 1
    assert bench.again(bench.narrow, "NODE_FAIL") == []
    assert len(read_lines(bench.run.events)) == 1


def ended_as_error(run: RunDir, cell: str, attempt: int = 1) -> None:
    ranks = [RankEnding(rank=0, ended="raised")]
    write_json(run.attempt(cell, attempt).result, CellResult(cell=cell, attempt=attempt, status="error", ranks=ranks))


def test_cells_of_one_job_that_run_again_apart_get_separate_jobs(bench: Bench) -> None:
    first, second = bench.wide.cells[:2]
    ended_as_error(bench.run, first)
    (lost,) = bench.again(bench.wide, "NODE_FAIL", "n[1-2]")
    note(bench.run.events, JobEnded(allocation=lost.name, array=lost.array, job="8", state="COMPLETED"))
    (wanted,) = retry_requested(bench.run, bench.plan, {first})
    assert (lost.cells, wanted.cells) == ((second,), (first,))
    assert newest_work_order(bench.run, lost.name).attempts == {second: 2}
    assert newest_work_order(bench.run, wanted.name).attempts == {first: 2}
    assert unfinished(bench.run, allocations_of(bench.run, bench.plan))[-1] == wanted
    ended_as_error(bench.run, first, 2)
    (third,) = retry_requested(bench.run, bench.plan, {first})
    assert newest_work_order(bench.run, third.name).attempts == {first: 3}
    name = bench.wide.name
    assert (lost.name, wanted.name, third.name) == (f"{name}-again2", f"{name}-again2-2", f"{name}-again2-2-again3")
    assert why(bench) == "requested by the user"


def test_a_lost_attempt_runs_again_although_the_one_before_it_crashed_by_itself(bench: Bench) -> None:
    (cell,) = bench.narrow.cells
    ranks = [RankEnding(rank=0, ended="raised")]
    write_json(bench.run.attempt(cell).result, CellResult(cell=cell, attempt=1, status="failed", ranks=ranks))
    (wanted,) = retry_requested(bench.run, bench.plan, {cell})
    (made,) = bench.again(wanted, "NODE_FAIL")
    assert newest_work_order(bench.run, made.name).attempts == {cell: 3}


def test_a_lost_cell_runs_again_after_another_one_of_its_job_did_on_request(bench: Bench) -> None:
    first, second = bench.wide.cells[:2]
    ended_as_error(bench.run, first)
    assert [one.cells for one in retry_requested(bench.run, bench.plan, {first, second})] == [(first,)]
    assert [one.cells for one in bench.again(bench.wide, "NODE_FAIL", "n[1-2]")] == [(second,)]


def test_a_cell_that_crashed_by_itself_does_not_run_again_when_its_job_is_preempted_later(bench: Bench) -> None:
    first, second = bench.wide.cells[:2]
    ranks = [RankEnding(rank=0, ended="killed", exit_code=-11), RankEnding(rank=1, ended="killed", exit_code=-15)]
    write_json(bench.run.attempt(first).result, CellResult(cell=first, attempt=1, status="failed", ranks=ranks))
    (made,) = bench.again(bench.wide, "PREEMPTED", "n[1-2]")
    assert made.cells == (second,)


def test_a_cell_has_as_many_attempts_as_the_plan_allows_and_no_more(bench: Bench) -> None:
    allocation = bench.narrow
    for number in range(2, bench.plan.max_attempts + 1):
        (allocation,) = bench.again(allocation, "NODE_FAIL")
        assert set(newest_work_order(bench.run, allocation.name).attempts.values()) == {number}
    assert bench.again(allocation, "NODE_FAIL") == []


def test_only_cells_without_a_result_or_with_an_interrupted_one_run_again(bench: Bench) -> None:
    first, second = bench.wide.cells[:2]
    completed = [RankEnding(rank=0, ended="completed")]
    results = {
        first: CellResult(cell=first, attempt=1, status="failed", ranks=[RankEnding(rank=0, ended="raised")]),
        second: CellResult(
            cell=second, attempt=1, status="error", ranks=[*completed, RankEnding(rank=1, ended="killed")]
        ),
    }
    for cell, result in results.items():
        write_json(bench.run.attempt(cell).result, result)
    (made,) = bench.again(bench.wide, "NODE_FAIL", "n[1-2]")
    assert made.cells == (second,)


@pytest.mark.parametrize(("exit_code", "runs_again"), [(-15, True), (-11, False)])
def test_a_cell_that_was_cut_off_after_its_resume_runs_again(bench: Bench, exit_code: int, runs_again: bool) -> None:
    first, second = bench.wide.cells[:2]
    for cell in (first, second):
        whole = CellResult(cell=cell, attempt=1, status="completed", ranks=[RankEnding(rank=0, ended="completed")])
        write_json(bench.run.attempt(cell).result, whole)
    ranks = [RankEnding(rank=0, ended="killed", exit_code=exit_code)]
    later = CellResult(cell=second, attempt=1, status="failed", ranks=ranks)
    write_json(bench.run.attempt(second).resumed.result, later)
    made = bench.again(bench.wide, "PREEMPTED", "n[1-2]")
    assert [one.cells for one in made] == ([(second,)] if runs_again else [])


@pytest.mark.parametrize("state", ["NODE_FAIL", "BOOT_FAIL"])
def test_the_failed_node_of_a_one_node_job_is_excluded(bench: Bench, slurm: Scheduler, state: str) -> None:
    (made,) = bench.again(bench.narrow, state, "n3")
    assert "#SBATCH --exclude=n3\n" in bench.job_file(made)
    assert slurm.calls("sinfo") == []


def test_of_several_nodes_those_that_slurm_marks_unusable_are_excluded(bench: Bench, slurm: Scheduler) -> None:
    slurm.answers("sinfo", says("n2"))
    (made,) = bench.again(bench.wide, "NODE_FAIL", "n[1-2]")
    assert "#SBATCH --exclude=n2\n" in bench.job_file(made)
    assert "-n n[1-2]" in slurm.calls("sinfo")[0]


def test_nodes_that_fail_again_are_excluded_once(bench: Bench, slurm: Scheduler) -> None:
    slurm.answers("sinfo", says("n1", "n2"), says("n2", "n3"))
    (made,) = bench.again(bench.wide, "NODE_FAIL", "n[1-2]")
    bench.again(made, "NODE_FAIL", "n[2-3]")
    assert [event["exclude"] for event in read_lines(bench.run.events)] == [["n1", "n2"], ["n1", "n2", "n3"]]


def test_all_hosts_that_an_agent_names_are_reported_and_excluded(bench: Bench, slurm: Scheduler) -> None:
    slurm.answers("sinfo", says("n1 node-a", "n2 node-b"))
    failed(bench, bench.wide, 0, "node-b", "n1")
    (made,) = bench.again(bench.wide, "FAILED", "n[1-2]", "3:0")
    assert "#SBATCH --exclude=n2,n1\n" in bench.job_file(made)
    assert why(bench) == "job 7 ended as FAILED on n[1-2]: its agents reported node-b, n1"


def test_every_node_on_which_an_attempt_failed_is_excluded_until_the_user_wants_the_cell_again(bench: Bench) -> None:
    (second,) = bench.again(bench.narrow, "NODE_FAIL", "n3")
    (third,) = bench.again(second, "NODE_FAIL", "n4")
    assert "#SBATCH --exclude=n3,n4\n" in bench.job_file(third)
    (cell,) = third.cells
    ended_as_error(bench.run, cell, 3)
    (fourth,) = retry_requested(bench.run, bench.plan, {cell})
    assert "--exclude" not in bench.job_file(fourth)


def failed(bench: Bench, allocation: Allocation, node: int, *hosts: str) -> None:
    """The agent of a node ends and names hosts."""
    note(bench.run.agent_journal(allocation.name, node), Failed(reason="why", traceback="", nodes=hosts))


@pytest.mark.parametrize("exit_code", ["3:0", "0:9"])
@pytest.mark.parametrize(
    ("host", "excluded"), [("n2", "n2"), ("node-b", "n2"), ("node-b.cluster", "n2"), ("node-c", ""), ("same", "")]
)
def test_a_job_that_failed_because_it_lost_a_node_runs_again_without_the_node(
    bench: Bench, slurm: Scheduler, exit_code: str, host: str, excluded: str
) -> None:
    """srun ends the job when its agents give up on the node, minutes before Slurm sees that the node is down."""
    nodes = ("n1 same", "n2 same") if host == "same" else ("n1 node-a.cluster", "n2 node-b.cluster")
    slurm.answers("sinfo", says(*nodes), "")
    failed(bench, bench.wide, 0, host)
    failed(bench, bench.wide, 1, "n1")  # an isolated node misses the leader: the leader's word counts
    (made,) = bench.again(bench.wide, "FAILED", "n[1-2]", exit_code)
    flags = [line for line in bench.job_file(made).splitlines() if "--exclude=" in line]
    assert flags == [f"#SBATCH --exclude={excluded}"] * bool(excluded)
    (event,) = read_lines(bench.run.events)
    assert event["why"] == f"job 7 ended as FAILED on n[1-2]: its agents reported {host}"
    assert event.get("exclude", []) == [excluded] * bool(excluded)


def test_a_job_that_lost_its_leading_node_is_retried_by_what_the_other_agents_say(
    bench: Bench, slurm: Scheduler
) -> None:
    slurm.answers("sinfo", says("n1 n1", "n2 n2"))
    failed(bench, bench.wide, 1, "n1")
    (made,) = bench.again(bench.wide, "FAILED", "n[1-2]", "3:0")
    assert "#SBATCH --exclude=n1\n" in bench.job_file(made)


def test_a_job_whose_only_node_has_a_broken_gpu_is_retried_on_another_one(bench: Bench, slurm: Scheduler) -> None:
    failed(bench, bench.narrow, 0, "node-c")
    (made,) = bench.again(bench.narrow, "FAILED", "n3", "3:0")
    assert "#SBATCH --exclude=n3\n" in bench.job_file(made)
    assert slurm.calls("sinfo") == []


def test_a_failure_that_names_no_node_is_not_retried(bench: Bench) -> None:
    failed(bench, bench.wide, 0)
    assert bench.again(bench.wide, "FAILED", "n[1-2]", "3:0") == []


def test_cells_that_a_job_did_not_start_because_its_end_was_announced_run_in_another_job(bench: Bench) -> None:
    failure = Failed(reason="SIGUSR1", traceback="", announced=True)
    note(bench.run.agent_journal(bench.narrow.name, 0), failure)
    (made,) = bench.again(bench.narrow, "FAILED", "n3", "3:0")
    assert made.cells == bench.narrow.cells
    assert "--exclude" not in bench.job_file(made)
    assert why(bench) == "job 7 ended as FAILED on n3: a signal announced its end"


@pytest.mark.parametrize("state", ["PREEMPTED"])
def test_a_preempted_job_may_run_on_the_same_node(bench: Bench, state: str) -> None:
    (made,) = bench.again(bench.narrow, state, "n3")
    assert "--exclude" not in bench.job_file(made)


def test_a_cancelled_run_retries_nothing(bench: Bench) -> None:
    write_json(bench.run.cancelled, {})
    assert bench.again(bench.narrow, "NODE_FAIL") == []


def test_a_retry_repeats_the_attempts_of_the_newest_start_of_a_job(bench: Bench) -> None:
    (cell,) = bench.narrow.cells
    write_new(bench.run.claim(bench.narrow.name, 1), Claim(job="7", restart=0, order=bench.narrow.name))
    second = Allocation(name=f"{bench.narrow.name}.restart1", cells=(cell,))
    write_new(bench.run.claim(bench.narrow.name, 2), Claim(job="7", restart=1, order=second.name))
    order_allocation(bench.run, second, {cell: 2}, parallel_ranks=1)
    (made,) = bench.again(bench.narrow, "NODE_FAIL")
    assert newest_work_order(bench.run, made.name).attempts == {cell: 3}


@pytest.mark.parametrize(
    ("state", "calls"),
    [
        *(("NODE_FAIL", 1), ("PREEMPTED", 1), ("UNKNOWN", 1), ("RUNNING", 1)),
        *(("COMPLETED", 0), ("FAILED", 0), ("PENDING", 0), ("REQUEUE_HOLD", 0)),
    ],
)
def test_a_job_that_is_no_longer_followed_is_cancelled_so_that_slurm_does_not_restart_it(
    bench: Bench, slurm: Scheduler, state: str, calls: int
) -> None:
    keep_from_starting(bench.plan, bench.ended(bench.narrow, state), SlurmClient())
    assert slurm.calls("scancel") == [f"scancel --name=t-1.{bench.narrow.array} 7"] * calls
