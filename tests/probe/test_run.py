"""The setup of a rank before its legs, as on a node with eight GPUs: what it does in which order."""

from __future__ import annotations

import os
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from harness.core.cell.config import CellConfig
from harness.core.cell.layout import Coordinates
from harness.core.cell.timing import TimingConfig
from harness.core.hardware import DETERMINISM_VARIABLES
from harness.core.run.records import RankRecord
from harness.probe import run
from harness.runtime.device.placement import Device
from harness.runtime.recording.recorder import Recorder
from tests.runtime.conftest import config

GPU = Device(kind="cuda", backend="nccl", index=3)
TIMED = TimingConfig(documents=(2,))


@pytest.fixture
def on_gpu(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Answers of a GPU, and the steps of the setup instead of which only their names are noted."""
    done: list[str] = []
    for name, value in {"LOCAL_WORLD_SIZE": "8", "LOCAL_RANK": "3", "RANK": "3", "WORLD_SIZE": "8"}.items():
        monkeypatch.setenv(name, value)
    for name in DETERMINISM_VARIABLES:
        monkeypatch.setenv(name, "")  # restored after the test
        monkeypatch.delenv(name)

    def choose(*_: Any) -> Device:
        done.append("deterministic" if DETERMINISM_VARIABLES.items() <= os.environ.items() else "fast")
        return GPU

    monkeypatch.setattr(run, "choose_device", choose)
    monkeypatch.setattr(run, "capability", lambda device: (9, 0))
    monkeypatch.setattr(run, "memory_bytes", lambda device: 80 * 2**30)
    monkeypatch.setattr(run, "_environment", lambda config, device: {})
    monkeypatch.setattr(run.cpu_stubs, "refuse", lambda: None)
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda device: 1)
    monkeypatch.setattr(torch.cuda, "max_memory_reserved", lambda device: 1)
    for owner, name in (
        (run, "share_cores"),  # not on a GPU
        (run, "_join"),
        (run.gpt, "initialize_parallel"),
        (run.gpt, "first_collectives"),
        (run, "_legs"),
        (run, "leave_together"),
    ):
        monkeypatch.setattr(owner, name, lambda *_, name=name: done.append(name))
    return done


def probe(config: CellConfig, folder: Path) -> None:
    place = Coordinates(tp=0, pp=0, dp=0, cp=0)
    recorder = Recorder(RankRecord(cell="cell", rank=3, place=place), folder / "ranks" / "rank-00003.json")
    run.run_probe(config, place, recorder, None)


@pytest.mark.parametrize(
    ("cell", "kernels"),
    [(config(), "deterministic"), (replace(config(), timing=TIMED), "fast")],
    ids=["judged", "timed"],
)
def test_groups_are_connected_before_the_legs_and_only_timed_cells_may_use_any_kernel(
    cell: CellConfig, kernels: str, on_gpu: list[str], tmp_path: Path
) -> None:
    probe(cell, tmp_path)
    assert on_gpu == [kernels, "_join", "initialize_parallel", "first_collectives", "_legs", "leave_together"]


def test_gloo_connects_groups_when_it_makes_them_so_nothing_else_does(
    on_gpu: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(run, "choose_device", lambda *_: replace(GPU, backend="gloo"))
    monkeypatch.setattr(run.gloo_stubs, "install", lambda: on_gpu.append("gloo_stubs"))
    probe(config(), tmp_path)
    assert on_gpu == ["gloo_stubs", "_join", "initialize_parallel", "_legs", "leave_together"]


def test_a_rank_on_the_cpu_shares_cores_before_it_starts_threads(
    on_gpu: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(run, "choose_device", lambda *_: Device(kind="cpu", backend="gloo", index=None))
    monkeypatch.setattr(run.cpu_stubs, "install", list)
    monkeypatch.setattr(run.node_stubs, "install", lambda pattern: [])
    monkeypatch.setattr(run, "limit_memory", lambda ranks: 1)
    probe(config(), tmp_path)
    assert on_gpu == ["share_cores", "_join", "initialize_parallel", "_legs", "leave_together"]


@pytest.mark.parametrize(("rank", "missing"), [(1, "done/2"), (0, "done/2"), (0, "left/2")])
def test_a_rank_leaves_after_all_are_done_and_the_server_of_the_store_after_all_others(rank: int, missing: str) -> None:
    store = dist.HashStore()
    others = [f"harness/{state}/{other}" for state in ("done", "left") for other in range(3) if other != rank]
    for key in others:
        if not key.endswith(missing):
            store.set(key, "")
    leaving = threading.Thread(target=run.leave_together, args=(store, rank, 3))
    leaving.start()
    leaving.join(0.1)
    assert leaving.is_alive()
    store.set(f"harness/{missing}", "")
    leaving.join()


@pytest.mark.parametrize(
    ("device", "bound"),
    [(GPU, {"device_id": torch.device("cuda", 3)}), (replace(GPU, backend="gloo"), {})],
    ids=["nccl", "gloo"],
)
def test_a_rank_over_nccl_binds_its_own_gpu_to_the_world_group(
    device: Device, bound: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    joined: list[dict[str, Any]] = []
    for name, value in {"RANK": "3", "WORLD_SIZE": "8", "MASTER_ADDR": "::1", "MASTER_PORT": "1"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(dist, "TCPStore", lambda *_, **__: None)
    monkeypatch.setattr(dist, "init_process_group", lambda backend, **more: joined.append(more))
    run._join(config(), device, None)
    assert [{name: value for name, value in more.items() if name == "device_id"} for more in joined] == [bound]
