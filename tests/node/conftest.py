"""One process that plays rank 0 of a world of one, and cells that real agents run."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import torch.distributed as dist

from harness.edge.run_dir import RunDir, write_json
from harness.words.cell import CellConfig, TrainConfig, cell_id
from harness.words.documents import adversarial_mix
from harness.words.jsonable import from_jsonable, loads
from harness.words.layout import Layout
from harness.words.records import CellResult, RankRecord


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


@pytest.fixture
def world_of_one() -> Iterator[None]:
    """torch.distributed and Megatron's groups for a single rank, taken down afterwards."""
    from megatron.core import parallel_state

    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    parallel_state.initialize_model_parallel()
    yield
    parallel_state.destroy_model_parallel()
    dist.destroy_process_group()


@dataclass
class Ran:
    """What an agent left of one cell."""

    config: CellConfig
    result: CellResult
    records: dict[int, RankRecord] = field(default_factory=dict)
    root: Path = Path()


def run_cells(root: Path, configs: dict[str, CellConfig], parallel_ranks: int = 8) -> dict[str, Ran]:
    """Run cells with a real agent in a process of its own; by the names of `configs`."""
    run = RunDir(root)
    ids = {name: cell_id(one) for name, one in configs.items()}
    for name, one in configs.items():
        write_json(run.attempt(ids[name]).config, one)
    order = {"cells": [{"cell": cell, "attempt": 1} for cell in ids.values()], "parallel_ranks": parallel_ranks}
    write_json(run.submission("local"), order)
    command = [sys.executable, "-m", "harness.node.agent", str(root), "local", "--attached-to", str(os.getpid())]
    subprocess.run(command, check=True, capture_output=True, timeout=300)
    return {name: _read(run, one, ids[name]) for name, one in configs.items()}


def _read(run: RunDir, one: CellConfig, cell: str) -> Ran:
    attempt = run.attempt(cell)
    ran = Ran(one, from_jsonable(CellResult, loads(attempt.result.read_text())), root=attempt.root)
    for rank in range(one.layout.world_size):
        path = attempt.record(rank)
        if path.exists():
            ran.records[rank] = from_jsonable(RankRecord, loads(path.read_text()))
    return ran
