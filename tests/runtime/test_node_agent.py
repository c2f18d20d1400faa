"""The base class of agents with small processes in place of supervisors."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from harness.core.cell.config import CellConfig
from harness.core.errors import DriverError
from harness.core.run.records import CellResult
from harness.core.run.run_dir import RunDir, write_json
from harness.runtime import node_agent
from harness.runtime.coordination.rendezvous import Heartbeat, NodeShare, heartbeat_file, read
from harness.runtime.device import cuda_forks, gpu_health
from harness.runtime.node_agent import Agent
from tests.processes import HUNG_S
from tests.runtime.conftest import config

pytestmark = pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")

CONTEXT = multiprocessing.get_context("fork")
FAR_S = 600.0


class Small(Agent):
    """An agent whose work a test gives it; it records which cells have ended."""

    def __init__(self, root: Path, work: Callable[[Small], None]) -> None:
        run = RunDir(root)
        write_json(run.submission("local"), {"cells": [], "parallel_ranks": 2})
        super().__init__(run, "local")
        self.todo, self.over = work, list[str]()

    def work(self) -> None:
        self.todo(self)

    def supervise(self, cell: str, what: Callable[[], object]) -> None:
        process = CONTEXT.Process(target=what)
        process.start()
        share = NodeShare(node=0, nodes=1, world_size=1, gpus=(len(self.running),))
        self.running[process] = (cell, 1, config(), share, time.time() + FAR_S)

    def ended(self, cell: str, number: int, config: CellConfig, exit_code: int | None) -> None:
        self.over.append(cell)

    @property
    def beat(self) -> Heartbeat:
        beat = read(Heartbeat, heartbeat_file(self.run, "local", 0))
        assert beat is not None
        return beat


@pytest.fixture(autouse=True)
def nothing_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node_agent, "loaded", lambda: 0.0)


def _run() -> None:
    os.setsid()
    signal.pause()


def two_failed_cells(agent: Small) -> None:
    """Two supervisors that end between two polls."""
    for cell in ("a", "b"):
        agent.supervise(cell, os.setsid)
        write_json(agent.run.attempt(cell).result, CellResult(cell=cell, attempt=1, status="failed"))
    for process in agent.running:
        os.waitid(os.P_PID, process.pid or 0, os.WEXITED | os.WNOWAIT)  # without reaping it


def test_a_broken_gpu_stops_further_cells_of_its_node_and_not_those_that_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The test of a GPU forks a child, and starting a child reaps all processes that have exited."""
    gpu = cuda_forks.Gpu(name="H200", capability=(9, 0), memory_bytes=1)
    monkeypatch.setattr(cuda_forks, "gpu_table", lambda: (gpu,) * 3)

    def compute(device: str) -> None:
        raise RuntimeError("CUDA error")

    def work(agent: Small) -> None:
        two_failed_cells(agent)
        agent.supervise("runs", _run)
        agent.reap(0.0)
        (runs,) = agent.running
        assert runs.is_alive()

    monkeypatch.setattr(gpu_health, "compute", compute)
    agent = Small(tmp_path, work)
    agent.main()
    assert agent.over == ["a", "b"]
    assert agent.beat.trouble == agent.trouble == "using GPU 0 after a cell failed there: RuntimeError: CUDA error"


def test_a_node_whose_driver_does_not_answer_reports_it_and_waits_for_the_leader(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def load() -> None:
        raise DriverError("counting the GPUs of this node: the driver has not answered for 120 s")

    monkeypatch.setattr(node_agent, "loaded", load)
    monkeypatch.setenv("SLURMD_NODENAME", "n7")
    agent = Small(tmp_path, lambda agent: None)
    agent.main()
    assert (agent.beat.host, agent.beat.trouble) == (
        "n7",
        "counting the GPUs of this node: the driver has not answered for 120 s",
    )


def test_an_agent_that_fails_kills_the_cells_that_run_and_not_those_that_were_reaped(tmp_path: Path) -> None:
    def work(agent: Small) -> None:
        agent.supervise("reaped", os.setsid)
        agent.supervise("has no process group yet", signal.pause)
        agent.supervise("runs", _run)
        first, *_ = agent.running
        first.join()
        raise ValueError("the agent's own")

    agent = Small(tmp_path, work)
    with pytest.raises(ValueError, match="the agent's own"):
        agent.main()
    for process in agent.running:
        process.join()
    assert [process.exitcode for process in agent.running] == [0, -signal.SIGKILL, -signal.SIGKILL]
    assert agent.beat.state == "ended"


ENDS_WITHOUT_STOP = """
import sys
from pathlib import Path
from harness.runtime.coordination import rendezvous
rendezvous.HEARTBEAT_S = 0.01
writer = rendezvous.HeartbeatWriter(Path(sys.argv[1]), "token")
writer.start("ready")
first = writer.path.read_text()
while writer.path.read_text() == first:
    pass
raise ValueError("before stop")
"""


def test_the_heartbeat_ends_with_its_agent_even_if_nothing_stops_it(tmp_path: Path) -> None:
    command = [sys.executable, "-c", ENDS_WITHOUT_STOP, str(tmp_path / "beat")]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=HUNG_S)
    assert "ValueError: before stop" in ended.stderr
    assert list(tmp_path.iterdir()) == [tmp_path / "beat"]


def test_a_busy_node_gives_cells_more_time_but_not_those_with_a_fault(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent = Small(tmp_path, lambda agent: None)
    for cell, fault in (("sound", None), ("broken", "middle-stages-without-metadata")):
        write_json(agent.run.attempt(cell, 1).config, config(deadline_s=60.0, fault=fault))
    monkeypatch.setattr(agent.contention, "factor", lambda: 2.5)
    assert [agent.config(cell, 1).deadline_s for cell in ("sound", "broken")] == [150.0, 60.0]
