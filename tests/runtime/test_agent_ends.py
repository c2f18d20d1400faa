"""Why an allocation ends before all its cells have a result, and what the agents' journals say about it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from harness.core.cell.identity import cell_id
from harness.core.errors import DriverError, InfrastructureError
from harness.core.run.events import CellStarted, Failed, Gathered, note, read_events
from harness.core.run.run_dir import RunDir, write_json
from harness.runtime import node_agent
from harness.runtime.agent import Follower, Leader
from harness.runtime.coordination.rendezvous import Heartbeat, NodeResult, heartbeat_file, node_file, read
from tests.runtime.conftest import config

pytestmark = pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")

CELL = cell_id(config(tp=2))


@pytest.fixture(autouse=True)
def nothing_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node_agent, "loaded", lambda: 0.0)
    monkeypatch.setenv("SLURMD_NODENAME", "n0")


def order(root: Path, nodes: int, cells: int = 1) -> RunDir:
    run = RunDir(root)
    items = [{"cell": CELL, "attempt": number + 1} for number in range(cells)]
    write_json(run.submission("local"), {"cells": items, "parallel_ranks": 2, "nodes": nodes})
    for item in range(cells):
        write_json(run.attempt(CELL, item + 1).config, config(tp=2))
    return run


def beat(run: RunDir, node: int, **changes: Any) -> None:
    values = {"time": 0.0, "state": "ready", "token": "aa", "pid": 1, "host": f"n{node}", **changes}
    write_json(heartbeat_file(run, "local", node), values)


def failure(run: RunDir, node: int = 0) -> Failed:
    """The last event of an agent's journal."""
    last = read_events(run.agent_journal("local", node))[-1]
    assert isinstance(last, Failed)
    return last


class _Gathered(Leader):
    """A leader whose followers are there already."""

    def _await_followers(self) -> None:
        return


@pytest.mark.parametrize(
    ("last", "reason"),
    [
        ({"state": "ended"}, "node 2 was lost; 1 cell not started"),
        ({"trouble": "using GPU 3: it is gone"}, "node 2: using GPU 3: it is gone; 1 cell not started"),
    ],
)
def test_the_leader_names_the_host_that_was_lost_or_whose_gpu_is_broken(
    last: dict[str, str], reason: str, tmp_path: Path
) -> None:
    run = order(tmp_path, 3)
    leader = _Gathered(run, "local", 0, 3)
    for node in (1, 2):
        beat(run, node)
    assert leader.others.latest().keys() == {1, 2}
    beat(run, 2, **last)
    with pytest.raises(InfrastructureError):
        leader.main()
    assert (failure(run).reason, failure(run).nodes) == (f"InfrastructureError: {reason}", ("n2",))


def test_a_node_that_is_lost_in_the_last_cell_is_named_too(tmp_path: Path) -> None:
    run = order(tmp_path, 2, cells=0)
    leader = _Gathered(run, "local", 0, 2)
    beat(run, 1)
    leader.others.latest()
    beat(run, 1, state="ended")
    with pytest.raises(InfrastructureError, match="node 1 was lost; 0 cells not started"):
        leader.main()
    assert failure(run).nodes == ("n1",)


def test_a_leader_whose_own_gpus_are_broken_names_its_host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def load() -> None:
        raise DriverError("the driver has not answered")

    monkeypatch.setattr(node_agent, "loaded", load)
    run = order(tmp_path, 1)
    with pytest.raises(InfrastructureError, match="node 0: the driver has not answered; 1 cell not started"):
        Leader(run, "local").main()
    assert failure(run).nodes == ("n0",)


def test_a_follower_with_a_broken_gpu_starts_no_cell_and_ends_with_the_leader(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def load() -> None:
        raise DriverError("the driver has not answered")

    monkeypatch.setattr(node_agent, "loaded", load)
    run = order(tmp_path, 2)
    follower, leader = Follower(run, "local", 1, 2), run.agent_journal("local", 0)
    note(leader, Gathered(tokens={"1": follower.heartbeat.token}))
    note(leader, CellStarted(cell=CELL, attempt=1, ranks=2))
    note(leader, Failed(reason="node 1", traceback=""))
    follower.main()
    result = read(NodeResult, node_file(run.attempt(CELL), 1))
    assert result is not None
    assert (result.trouble, [rank.ended for rank in result.ranks]) == (
        "node 1: the driver has not answered",
        ["missing"],
    )


# The agent runs cells one after the other. A cell prints its pid, its limit of core files and a variable; it ends when
# its standard input does.
AGENT = """
import os, resource, signal, sys, types
from harness.core.errors import DriverError
from harness.core.run.records import CellResult
from harness.core.run.run_dir import AttemptDir, write_json
from harness.runtime import agent, node_agent
from pathlib import Path

def supervise(root, cell, number, *_):
    core = resource.getrlimit(resource.RLIMIT_CORE)[0]
    print(os.getpid(), core, os.environ["TORCH_NCCL_RETHROW_CUDA_ERRORS"], flush=True)
    os.read(0, 1)
    write_json(AttemptDir(Path(root)).result, CellResult(cell=cell, attempt=number, status="completed"))

hard = resource.getrlimit(resource.RLIMIT_CORE)[1]
resource.setrlimit(resource.RLIMIT_CORE, (hard, hard))


def load():
    if os.environ["SLURMD_NODENAME"] == os.environ.get("BROKEN"):
        raise DriverError("the driver has not answered")
    return 0.0

node_agent.loaded = load
for name, values in {
    "supervisor": {"supervise": supervise},
    "refusals": {"refusal": lambda *_: None},
    "device.cuda_forks": {"gpu_table": lambda: ()},
}.items():
    sys.modules[f"harness.runtime.{name}"] = types.SimpleNamespace(**values)
raise SystemExit(agent.main())
"""


def spawn(root: Path, *arguments: str, **environment: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", AGENT, str(root), "local", "--attached-to", str(os.getpid()), *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **environment},
    )


def start(root: Path, **environment: str) -> tuple[subprocess.Popen[str], tuple[int, ...]]:
    """An agent, and what its first cell prints."""
    agent = spawn(root, **environment)
    assert agent.stdout is not None
    return agent, tuple(int(word) for word in agent.stdout.readline().split())


@pytest.mark.parametrize("broken", ["n0", "n1"])
def test_agents_of_two_nodes_end_in_order_when_the_driver_of_one_does_not_answer(broken: str, tmp_path: Path) -> None:
    """Only the leader fails, after it has named the host: srun ends all agents once one has failed."""
    run = order(tmp_path, 2)
    agents = [
        spawn(tmp_path, "--nodes", "2", "--node", str(node), SLURMD_NODENAME=f"n{node}", BROKEN=broken)
        for node in (0, 1)
    ]
    said = [agent.communicate("")[1] for agent in agents]
    assert [agent.returncode for agent in agents] == [3, 0], said
    reason = f"InfrastructureError: node {broken[1]}: the driver has not answered; 1 cell not started"
    assert (failure(run).reason, failure(run).nodes) == (reason, (broken,))


@pytest.mark.parametrize("users", [None, "1"])
def test_ranks_leave_no_core_files_and_report_cuda_errors_before_the_watchdog_aborts_them(
    users: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TORCH_NCCL_RETHROW_CUDA_ERRORS", raising=False)
    order(tmp_path, 1)
    agent, (_, core, rethrow) = start(tmp_path, **({"TORCH_NCCL_RETHROW_CUDA_ERRORS": users} if users else {}))
    _, errors = agent.communicate("")
    assert agent.returncode == 0, errors
    assert (core, rethrow) == (0, int(users or 0))


@pytest.mark.parametrize("number", [signal.SIGUSR1, signal.SIGUSR2])
@pytest.mark.parametrize("cells", [1, 2])
def test_a_signal_that_announces_the_end_of_the_job_lets_running_cells_finish(
    cells: int, number: signal.Signals, tmp_path: Path
) -> None:
    run = order(tmp_path, 1, cells)
    agent, (supervisor, *_) = start(tmp_path)
    beating = read(Heartbeat, heartbeat_file(run, "local", 0))
    assert beating is not None
    assert beating.pid == agent.pid
    for pid in (supervisor, agent.pid):
        os.kill(pid, number)
    _, errors = agent.communicate("")
    assert run.attempt(CELL, 1).result.exists(), errors
    assert not run.attempt(CELL, 2).result.exists()
    kinds = [event.kind.value for event in read_events(run.agent_journal("local", 0))]
    if cells == 1:
        assert (agent.returncode, kinds[-1]) == (0, "finished")
    else:
        assert agent.returncode == 3
        why = f"InfrastructureError: {number.name} announced the end of the job; 1 cell not started"
        assert (failure(run).reason, failure(run).nodes, failure(run).announced) == (why, (), True)
