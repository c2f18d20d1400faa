"""Which cells a leader runs side by side, and on which GPUs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from multiprocessing.process import BaseProcess
from pathlib import Path

import pytest

from harness.core.cell.config import CellConfig
from harness.core.cell.identity import cell_id
from harness.core.run.run_dir import RunDir, write_json
from harness.inputs.matrix_file import read_matrix
from harness.matrix.expansion.expand import expand
from harness.runtime import refusals
from harness.runtime.agent import Leader
from harness.runtime.device import cuda_forks
from tests.runtime.conftest import config


class Starting(Leader):
    """A leader that forks nothing, and notes at each poll which cells run side by side; they then end."""

    def __init__(self, run: RunDir, allocation: str) -> None:
        super().__init__(run, allocation)
        self.together: list[list[tuple[str, tuple[int, ...] | None]]] = []

    def fork(self, cell: str, number: int, config: CellConfig, deadline_at: float) -> None:
        share = replace(self.node_share(config), gpus=self.gpus_of(cell, config))
        self.running[BaseProcess()] = (cell, number, config, share, deadline_at)

    def reap(self, at_most_s: float) -> None:
        self.together.append([(cell, share.gpus) for cell, _, _, share, _ in self.running.values()])
        for cell, number, ended, *_ in self.running.values():
            self.ended(cell, number, ended, 0)
        self.running.clear()


@pytest.fixture(autouse=True)
def eight_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu = cuda_forks.Gpu(name="H200", capability=(9, 0), memory_bytes=1)
    monkeypatch.setattr(cuda_forks, "gpu_table", lambda: (gpu,) * 8)
    monkeypatch.setattr(refusals, "refusal", lambda config, ranks: None)


def started(
    root: Path, cells: Sequence[CellConfig], parallel_ranks: int
) -> list[list[tuple[str, tuple[int, ...] | None]]]:
    run = RunDir(root)
    for one in cells:
        write_json(run.attempt(cell_id(one)).config, one)
    items = [{"cell": cell_id(one), "attempt": 1} for one in cells]
    write_json(run.submission("local"), {"cells": items, "parallel_ranks": parallel_ranks})
    leader = Starting(run, "local")
    leader.work()
    return leader.together


def test_cells_side_by_side_get_gpus_of_their_own(tmp_path: Path) -> None:
    cells = [config(tp=2), config(), config("sft", tp=4), config("sft", tp=2)]
    first, second = started(tmp_path, cells, 8)
    assert [gpus for _, gpus in first] == [(0, 1), (2,), (3, 4, 5, 6)]
    assert [gpus for _, gpus in second] == [(0, 1)]


def test_no_two_cells_of_the_throughput_matrix_run_side_by_side(root: Path, tmp_path: Path) -> None:
    """Two of them do not fit into 80 GB."""
    matrix = read_matrix(root / "matrices" / "throughput_gpu.yaml")
    made = expand(matrix)
    assert sum(cell.role == "control" for cell in made.cells) == 2
    ranks = matrix.launch.parallel_ranks or 8
    together = started(tmp_path, [cell.config for cell in made.cells], ranks)
    assert [len(cells) for cells in together] == [1] * len(made.cells)
