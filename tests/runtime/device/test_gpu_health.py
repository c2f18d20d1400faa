"""After a cell has failed on a GPU: whether the GPU still computes, and the Xid lines of the kernel log."""

from __future__ import annotations

import os
import threading
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from harness.core.errors import DriverError
from harness.core.run.records import CellResult
from harness.core.run.run_dir import AttemptDir, write_json
from harness.runtime import supervisor
from harness.runtime.coordination.rendezvous import NodeShare
from harness.runtime.device import cuda_forks, gpu_health
from harness.runtime.device.gpu_health import xid_lines
from harness.runtime.process import other_threads
from tests.runtime.conftest import config

BOOT = "6,100,1000000,-;NVRM: loading NVIDIA UNIX Open Kernel Module\n"
OLD = "3,101,2000000,-;NVRM: Xid (PCI:0000:1b:00): 79, pid=1, GPU has fallen off the bus.\n"
OTHER = "6,102,9000000,-;eth0: link becomes ready\n"
NEW = "3,103,9500000,-;NVRM: Xid (PCI:0000:1b:00): 94, pid=7, Contained: SM (0x1). RST: No\n SUBSYSTEM=pci\n"


def test_a_gpu_that_computes_is_distinguished_from_one_that_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu_health.compute("cpu")
    monkeypatch.setattr(torch, "ones", lambda *size, device: torch.full(size, 2.0, device=device))
    with pytest.raises(RuntimeError, match="cpu computed 6"):
        gpu_health.compute("cpu")


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_the_gpus_of_the_cell_are_used_in_a_child(monkeypatch: pytest.MonkeyPatch) -> None:
    def compute(device: str) -> None:
        if device == "cuda:1":
            raise RuntimeError(f"uncorrectable ECC error on {os.environ['CUDA_VISIBLE_DEVICES'].split(',')[1]}")

    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-a,GPU-b,GPU-c")
    monkeypatch.setattr(gpu_health, "compute", compute)
    assert gpu_health.broken_gpus((0,)) == ""
    assert gpu_health.broken_gpus((0, 2)) == (
        "using GPUs 0, 2 after a cell failed there: RuntimeError: uncorrectable ECC error on GPU-c"
    )
    assert os.environ["CUDA_VISIBLE_DEVICES"] == "GPU-a,GPU-b,GPU-c"


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_driver_that_does_not_answer_is_reported_and_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda_forks, "DRIVER_TIMEOUT_S", 0.1)
    with pytest.raises(DriverError, match=r"asking: the driver has not answered for 0 s"):
        cuda_forks.in_child(lambda: os.read(os.pipe()[0], 1), "asking")
    monkeypatch.undo()
    with pytest.raises(DriverError, match=r"asking: the child process ended with exit code 7"):
        cuda_forks.in_child(lambda: os._exit(7), "asking")


@pytest.mark.parametrize(
    ("status", "device", "tested"),
    [("failed", "auto", True), ("error", "cuda", True), ("completed", "cuda", False), ("failed", "cpu", False)],
)
def test_the_gpus_of_a_cell_that_failed_on_them_are_tested(
    status: str, device: str, tested: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    attempt, parts = AttemptDir(tmp_path), list[tuple[int, ...]]()
    write_json(attempt.result, CellResult(cell="cell", attempt=1, status=status))
    gpu = cuda_forks.Gpu(name="H200", capability=(9, 0), memory_bytes=1)
    monkeypatch.setattr(cuda_forks, "gpu_table", lambda: (gpu,) * 8)
    monkeypatch.setattr(gpu_health, "broken_gpus", lambda part: parts.append(part) or "using GPU 3: it is gone")
    cell, share = replace(config(), device=device), NodeShare(node=0, nodes=1, world_size=2, gpus=(2, 3))
    assert gpu_health.trouble_after(attempt, cell, share) == "using GPU 3: it is gone" * tested
    assert parts == [(2, 3)] * tested


@pytest.mark.parametrize(
    ("ranks", "gpus", "requested"), [(2, (2, 3), [2, 3]), (2, None, [0, 1]), (16, None, [*range(8)]), (1, (7,), [7])]
)
def test_only_the_gpus_of_the_cell_itself_are_tested(
    ranks: int, gpus: tuple[int, ...] | None, requested: list[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    attempt, used = AttemptDir(tmp_path), list[list[int]]()
    write_json(attempt.result, CellResult(cell="cell", attempt=1, status="failed"))
    gpu = cuda_forks.Gpu(name="H200", capability=(9, 0), memory_bytes=1)
    monkeypatch.setattr(cuda_forks, "gpu_table", lambda: (gpu,) * 8)
    monkeypatch.setattr(gpu_health, "broken_gpus", lambda part: used.append([*part]) or "")
    gpu_health.trouble_after(attempt, config(), NodeShare(node=0, nodes=1, world_size=ranks, gpus=gpus))
    assert used == [requested]


def test_a_node_without_gpus_is_not_tested() -> None:
    assert gpu_health.broken_gpus(range(0)) == ""


def test_threads_of_the_process_that_forks_are_listed() -> None:
    begun, over = threading.Event(), threading.Event()
    before = other_threads()
    thread = threading.Thread(target=lambda: begun.set() or over.wait())
    thread.start()
    begun.wait()
    assert len(other_threads()) == len(before) + 1
    over.set()
    thread.join()


def test_xid_lines_of_the_kernel_log_are_added_to_the_logs_of_ranks_that_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = tmp_path / "kmsg"
    source.write_text(BOOT + OLD + OTHER + NEW)
    assert xid_lines(5.0, source) == [
        "[    9.500000] NVRM: Xid (PCI:0000:1b:00): 94, pid=7, Contained: SM (0x1). RST: No"
    ]
    assert xid_lines(5.0, tmp_path / "forbidden") == []
    monkeypatch.setattr(supervisor, "xid_lines", lambda since: xid_lines(since, source))
    attempt = AttemptDir(tmp_path)
    attempt.log(2).parent.mkdir()
    supervisor._log_xids(attempt, [2], 5.0)
    assert "Xid (PCI:0000:1b:00): 94" in attempt.log(2).read_text()
    assert not attempt.log(1).exists()
