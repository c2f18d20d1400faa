"""A process group of one rank in this process, and cells that real agents run."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist

from harness.core.cell.config import CellConfig, TrainConfig
from harness.core.cell.identity import cell_id
from harness.core.cell.layout import Layout
from harness.core.packing.documents import adversarial_mix
from harness.core.run.records import CellResult, RankRecord
from harness.core.run.run_dir import AttemptDir, RunDir, write_json
from harness.core.serialization import from_jsonable, loads
from tests.processes import HUNG_S


def config(
    data_path: str = "reference", *, fault: str | None = None, deadline_s: float = 60.0, **layout: int
) -> CellConfig:
    """A small cell on the adversarial documents."""
    return CellConfig(
        layout=Layout(**layout, sp=layout.get("tp", 1) > 1),
        data_path=data_path,
        documents=adversarial_mix(64, 2),
        train=TrainConfig(steps=2),
        fault=fault,
        deadline_s=deadline_s,
    )


def upstream_module(folder: Path, text: str) -> Any:
    """A module whose frames count as code under test: `text` in folder/site-packages/skyrl/simulated.py."""
    path = folder / "site-packages" / "skyrl" / "simulated.py"
    path.parent.mkdir(parents=True)
    path.write_text("import time\nimport os\n\n\n" + text)
    spec = importlib.util.spec_from_file_location("simulated", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def world_of_one() -> Iterator[None]:
    """torch.distributed and Megatron's groups for a single rank, destroyed afterwards."""
    from megatron.core import parallel_state

    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    parallel_state.initialize_model_parallel()
    yield
    parallel_state.destroy_model_parallel()
    dist.destroy_process_group()


@dataclass
class Ran:
    """What one cell's files contain after an agent has run it."""

    config: CellConfig
    result: CellResult
    records: dict[int, RankRecord] = field(default_factory=dict)
    root: Path = Path()


def run_cells(root: Path, configs: dict[str, CellConfig], parallel_ranks: int = 8) -> dict[str, Ran]:
    """Run cells with a real agent in a separate process; keyed like `configs`."""
    agents = Agents(root, configs, parallel_ranks=parallel_ranks)
    assert agents.wait() == [0]
    return {name: agents.read(name) for name in configs}


class Agents:
    """The agents of one allocation, one process per node, all on this machine with one run directory."""

    def __init__(self, root: Path, configs: dict[str, CellConfig], nodes: int = 1, **order: Any) -> None:
        self.run, self.configs = RunDir(root), configs
        self.ids = {name: cell_id(one) for name, one in configs.items()}
        for name, one in configs.items():
            write_json(self.attempt(name).config, one)
        cells = [{"cell": cell, "attempt": 1} for cell in self.ids.values()]
        write_json(self.run.submission("local"), {"cells": cells, "parallel_ranks": 8, "nodes": nodes, **order})
        self.processes = [self._start(node, nodes) for node in range(nodes)]

    def _start(self, node: int, nodes: int) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "harness.runtime.agent", str(self.run.root), "local"]
        command += ["--attached-to", str(os.getpid()), "--node", str(node), "--nodes", str(nodes)]
        with (self.run.root / f"agent-{node}.log").open("wb") as log:
            return subprocess.Popen(command, stdout=log, stderr=log)

    def attempt(self, name: str) -> AttemptDir:
        return self.run.attempt(self.ids[name])

    def wait(self) -> list[int]:
        """Exit codes of the agents, by node."""
        return [process.wait(timeout=HUNG_S) for process in self.processes]

    def until(self, condition: Callable[[], bool], node: int = 0) -> None:
        """Wait for a condition; fails if the agent of `node`, which should bring it about, ends first."""
        for _ in range(3000):
            if condition():
                return
            with suppress(subprocess.TimeoutExpired):
                self.processes[node].wait(timeout=0.1)
                break
        assert condition(), (self.run.root / f"agent-{node}.log").read_text()

    def events(self, node: int) -> list[dict[str, Any]]:
        return [loads(line) for line in self.run.agent_journal("local", node).read_text().splitlines()]

    def record(self, name: str, rank: int) -> RankRecord:
        return from_jsonable(RankRecord, loads(self.attempt(name).record(rank).read_text()))

    def read(self, name: str) -> Ran:
        return _read(self.run, self.configs[name], self.ids[name])


def _read(run: RunDir, one: CellConfig, cell: str) -> Ran:
    attempt = run.attempt(cell)
    ran = Ran(one, from_jsonable(CellResult, loads(attempt.result.read_text())), root=attempt.root)
    for rank in range(one.layout.world_size):
        path = attempt.record(rank)
        if path.exists():
            ran.records[rank] = from_jsonable(RankRecord, loads(path.read_text()))
    return ran
