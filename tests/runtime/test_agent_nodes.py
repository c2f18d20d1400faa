"""Cells that span several nodes: one agent per node, all run here on one machine with one run directory."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest

from harness.core.run.records import RankRecord
from harness.core.run.run_dir import AttemptDir, RunDir, write_atomic, write_json
from harness.runtime.coordination.rendezvous import (
    Abort,
    HeartbeatMonitor,
    abort_file,
    clear,
    heartbeat_file,
    read,
    write_abort,
)
from harness.runtime.recording.recorder import last_progress
from tests.runtime.conftest import Agents, Ran, config, run_cells

pytestmark = pytest.mark.train

FAR_S = 600.0  # a deadline that no test waits for: agents must end within half of it
HANG = "rank-enters-a-collective-alone"


@pytest.fixture(scope="module")
def truth(tmp_path_factory: pytest.TempPathFactory) -> RankRecord:
    return run_cells(tmp_path_factory.mktemp("one"), {"one rank": config("unpacked")})["one rank"].records[0]


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Ran]:
    """Cells on two nodes; of two ranks, rank 1 is on node 1."""
    configs = {
        "raises": config(tp=2, fault="exception-at-step-1", deadline_s=FAR_S),
        "crashes": config(pp=2, fault="native-crash-in-a-kernel", deadline_s=FAR_S),
        "tp2-pp2-cp2": config("sft", tp=2, pp=2, cp=2),
        "hangs": config(tp=2, fault=HANG, deadline_s=15.0),
        "odd": config(),
    }
    agents = Agents(tmp_path_factory.mktemp("two"), configs, nodes=2)
    assert agents.wait() == [0, 0]
    return {name: agents.read(name) for name in configs}


@pytest.fixture(scope="module")
def four(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Ran]:
    configs = {"tp2-pp4": config("sft", tp=2, pp=4), "tp2-pp4-cp2": config("sft", tp=2, pp=4, cp=2)}
    agents = Agents(tmp_path_factory.mktemp("four"), configs, nodes=4)
    assert agents.wait() == [0, 0, 0, 0]
    return {name: agents.read(name) for name in configs}


def _equals(cell: Ran, truth: RankRecord) -> None:
    assert cell.result.status == "completed", cell.result
    assert [ending.rank for ending in cell.result.ranks] == list(range(cell.config.layout.world_size))
    assert len(cell.records) == cell.config.layout.world_size
    last = cell.records[max(cell.records)]
    assert len(last.steps) == len(truth.steps)
    for mine, expected in zip(last.steps, truth.steps):
        assert mine.token_count == expected.token_count
        assert mine.loss_sum == pytest.approx(expected.loss_sum, rel=1e-6)
        assert mine.grad_norm == pytest.approx(expected.grad_norm, rel=1e-5)


def test_eight_ranks_on_two_nodes_compute_what_one_rank_does(two: dict[str, Ran], truth: RankRecord) -> None:
    _equals(two["tp2-pp2-cp2"], truth)


@pytest.mark.parametrize("name", ["tp2-pp4", "tp2-pp4-cp2"])
def test_eight_and_sixteen_ranks_on_four_nodes_compute_the_same(
    four: dict[str, Ran], truth: RankRecord, name: str
) -> None:
    _equals(four[name], truth)


def test_each_node_runs_its_own_ranks_only(four: dict[str, Ran]) -> None:
    cell = four["tp2-pp4-cp2"]
    for node in range(1, 4):
        text = (cell.root / "nodes" / f"node-{node}.json").read_text()
        assert [rank for rank in range(16) if f'"rank": {rank},' in text] == list(range(4 * node, 4 * node + 4))
        assert (cell.root / "log" / f"supervisor-{node}.log").exists()


def test_an_exception_on_one_node_ends_the_cell_on_both_and_is_named_first(two: dict[str, Ran]) -> None:
    cell = two["raises"]
    assert cell.result.status == "failed"
    assert cell.result.first_failure_rank == 1
    assert cell.records[1].failure is not None
    assert cell.records[1].failure.type == "TypeError"
    assert cell.records[0].ended in ("raised", "killed")


def test_a_native_crash_on_one_node_keeps_its_exit_code(two: dict[str, Ran]) -> None:
    cell = two["crashes"]
    assert cell.result.status == "failed"
    assert cell.result.ranks[1].exit_code == -signal.SIGABRT
    assert cell.records[0].ended in ("raised", "killed")


def test_a_hang_dumps_the_stacks_of_both_nodes(two: dict[str, Ran]) -> None:
    cell = two["hangs"]
    assert cell.result.status == "failed"
    assert [ending.ended for ending in cell.result.ranks] == ["deadline", "deadline"]
    assert any(ending.hang for ending in cell.result.ranks)
    for rank in range(2):
        assert "most recent call first" in (cell.root / "log" / f"rank-{rank:05d}.log").read_text()


def test_a_cell_that_does_not_fill_the_nodes_is_an_error_and_the_others_run(two: dict[str, Ran]) -> None:
    assert two["odd"].result.status == "error"
    assert two["odd"].result.reason == "1 rank cannot be split over 2 nodes with the same number of ranks each"


def test_no_rank_outlives_its_cell(two: dict[str, Ran], four: dict[str, Ran]) -> None:
    records = [record for cell in (*two.values(), *four.values()) for record in cell.records.values()]
    pids = [int(record.environment["pid"]) for record in records]
    assert pids
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


def _trains(agents: Agents, name: str, rank: int) -> bool:
    progress = last_progress(agents.attempt(name).record(rank))
    return progress is not None and progress.leg == "training" and progress.step == 1


def _parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[1])


def test_a_killed_supervisor_costs_one_cell_and_a_killed_agent_ends_the_allocation_in_order(tmp_path: Path) -> None:
    """The leader ends when a follower is lost, since every cell needs all nodes."""
    configs = {
        "first": config(tp=2, fault=HANG, deadline_s=FAR_S),
        "second": config("sft", tp=2, fault=HANG, deadline_s=FAR_S),
        "third": config("sft", tp=2),
    }
    agents = Agents(tmp_path, configs, nodes=2, ranks_per_node=1, parallel_ranks=1, silence_s=8.0)

    agents.until(lambda: _trains(agents, "first", 1))
    os.kill(_parent(int(agents.record("first", 1).environment["pid"])), signal.SIGKILL)
    agents.until(lambda: _trains(agents, "second", 1))
    first = agents.read("first").result
    assert first.status == "error"
    assert "supervisor of node 1 ended with exit code -9" in first.reason
    assert first.ranks[1].ended == "killed"

    agents.processes[1].kill()
    assert agents.wait() == [3, -signal.SIGKILL]
    second = agents.read("second").result
    assert second.status == "error"
    assert second.reason.endswith("node 1 sent no heartbeats and wrote no result")
    assert second.ranks[1].ended == "killed"
    assert not agents.attempt("third").result.exists()
    last = agents.events(0)[-1]
    assert (last["event"], last["reason"]) == (
        "failed",
        "InfrastructureError: node 1 was lost; 1 cell not started",
    )


def test_an_abort_ends_the_ranks_and_followers_end_when_the_leader_is_killed(tmp_path: Path) -> None:
    configs = {
        "aborted": config(tp=2, fault=HANG, deadline_s=FAR_S),
        "hangs": config("sft", tp=2, fault=HANG, deadline_s=FAR_S),
    }
    # Long enough that node 1 does not count as silent on a busy machine: the result would not say how its rank ended.
    agents = Agents(tmp_path, configs, nodes=2, parallel_ranks=1, silence_s=25.0)
    agents.until(lambda: _trains(agents, "aborted", 1))
    write_abort(agents.attempt("aborted"), Abort(node=1, reason="no connection breaks: only this file ends the cell"))
    agents.until(lambda: _trains(agents, "hangs", 1), node=1)
    codes = [rank.exit_code for rank in agents.read("aborted").result.ranks]
    assert -signal.SIGTERM in codes  # the other rank may see the connection break before it gets its own signal
    assert all(codes)

    agents.processes[0].kill()
    assert agents.wait() == [-signal.SIGKILL, 3]
    assert agents.events(1)[-1]["reason"] == "InfrastructureError: the agent of node 0 sends no heartbeats"
    assert not agents.attempt("hangs").result.exists()
    rank = agents.record("hangs", 1)
    assert rank.ended in ("raised", "killed")
    with pytest.raises(ProcessLookupError):
        os.kill(int(rank.environment["pid"]), 0)


def _beat(run: RunDir, **changes: Any) -> None:
    beat = {"time": 0.0, "state": "ready", "token": "aa", "pid": 1, "host": "n1", **changes}
    write_json(heartbeat_file(run, "local", 1), beat)


def test_a_heartbeat_of_an_earlier_job_does_not_count(tmp_path: Path) -> None:
    run = RunDir(tmp_path)
    _beat(run, token="former")
    others = HeartbeatMonitor(run, "local", [1])
    assert others.latest() == {}
    _beat(run, token="new")
    assert others.latest()[1].token == "new"


def test_silence_is_measured_by_changes_and_not_by_the_other_nodes_clock(tmp_path: Path) -> None:
    run = RunDir(tmp_path)
    _beat(run)
    others = HeartbeatMonitor(run, "local", [1], silence_s=0.0)
    _beat(run, time=-1e9)
    patient = HeartbeatMonitor(run, "local", [1], silence_s=1e6)
    _beat(run, time=-2e9)
    assert patient.silent() == []
    others.latest()
    assert others.silent() == [1]


def test_an_agent_whose_last_heartbeat_says_ended_is_silent_at_once(tmp_path: Path) -> None:
    run = RunDir(tmp_path)
    others = HeartbeatMonitor(run, "local", [1], silence_s=1e6)
    _beat(run, state="ended")
    assert others.silent() == [1]


def test_the_first_abort_stays(tmp_path: Path) -> None:
    attempt = AttemptDir(tmp_path)
    write_abort(attempt, Abort(node=1, rank=3, reason="first"))
    write_abort(attempt, Abort(node=0, rank=0, reason="it lost its peer"))
    abort = read(Abort, abort_file(attempt))
    assert abort is not None
    assert abort.rank == 3
    assert [path.name for path in tmp_path.iterdir()] == ["abort.json"]


def test_the_files_of_an_interrupted_attempt_are_removed(tmp_path: Path) -> None:
    attempt = AttemptDir(tmp_path)
    for name in ("config.json", "abort.json", "rendezvous.json", "nodes/node-1.json", "ranks/rank-00000.json"):
        write_atomic(tmp_path / name, "{}")
    clear(attempt)
    assert [path.name for path in tmp_path.rglob("*.json")] == ["config.json"]
