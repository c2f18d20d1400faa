from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
import torch.distributed as dist

from harness.runtime.device.placement import (
    _MIN_LIMIT,
    Device,
    _bytes_in,
    barrier,
    choose_device,
    processor,
    share_cores,
)

PROGRAM = """
import resource, torch
from harness.runtime.device.placement import limit_memory
torch.set_num_threads(1)
limit = limit_memory(10**6)
assert limit == {least}, limit
kept = torch.empty({least} // 8, dtype=torch.uint8)
try:
    torch.empty({least}, dtype=torch.uint8)
except RuntimeError as error:
    assert "can't allocate memory" in str(error), error
else:
    raise AssertionError("more than the limit was allocated")
"""


def test_a_rank_on_the_cpu_cannot_allocate_more_than_its_share() -> None:
    subprocess.run([sys.executable, "-W", "ignore", "-c", PROGRAM.format(least=_MIN_LIMIT)], check=True)


def test_threads_of_a_cpu_rank_do_not_preempt_each_other() -> None:
    with ThreadPoolExecutor(1) as before:
        before.submit(share_cores).result()  # in a thread: the policy of a thread cannot be taken back
        policies = before.submit(lambda: (os.sched_getscheduler(0), in_a_new_thread(lambda: os.sched_getscheduler(0))))
        assert policies.result() == (os.SCHED_BATCH, os.SCHED_BATCH)
    assert os.sched_getscheduler(0) == os.SCHED_OTHER


def in_a_new_thread(function: Callable[[], int]) -> int:
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(function).result()


def test_a_container_that_refuses_the_policy_does_not_stop_the_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*args: object) -> None:
        raise PermissionError

    monkeypatch.setattr(os, "sched_setscheduler", refused)
    share_cores()


def test_a_field_that_proc_does_not_have_is_an_error() -> None:
    assert _bytes_in("/proc/meminfo", "MemTotal") > 2**30
    with pytest.raises(RuntimeError, match="/proc/meminfo has no Nonsense"):
        _bytes_in("/proc/meminfo", "Nonsense")


def test_a_processor_is_named_with_its_number_of_cores() -> None:
    assert re.fullmatch(r"\S.* x [1-9]\d*", processor())


@pytest.fixture
def two_gpus(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Make torch report two GPUs; the indices passed to set_device."""
    chosen: list[int] = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "set_device", chosen.append)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    return chosen


def test_a_rank_takes_its_gpu_and_nccl_or_shares_one_over_gloo(two_gpus: list[int]) -> None:
    own, shared = choose_device(1, 2), choose_device(2, 3, "cuda")
    assert (own.backend, own.torch_device) == ("nccl", torch.device("cuda", 1))
    assert (shared.backend, shared.torch_device, shared.sharing) == ("gloo", torch.device("cuda", 0), 2)
    assert two_gpus == [1, 0]
    assert "CUDA_VISIBLE_DEVICES" not in os.environ


def test_a_rank_that_must_use_the_cpu_hides_the_gpus(two_gpus: list[int]) -> None:
    device = choose_device(0, 1, "cpu")
    assert (device.kind, device.torch_device, two_gpus) == ("cpu", torch.device("cpu"), [])
    assert os.environ.pop("CUDA_VISIBLE_DEVICES") == ""


def test_a_missing_gpu_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ValueError, match="device is cuda, and this machine has no GPU"):
        choose_device(0, 1, "cuda")
    assert choose_device(0, 1).kind == "cpu"


@pytest.fixture
def barriers(monkeypatch: pytest.MonkeyPatch) -> list[list[int] | None]:
    requested: list[list[int] | None] = []
    monkeypatch.setattr(dist, "barrier", lambda device_ids=None: requested.append(device_ids))
    return requested


def test_a_barrier_over_nccl_is_on_the_gpu_of_the_rank(barriers: list[list[int] | None]) -> None:
    barrier(Device(kind="cuda", backend="nccl", index=3))
    barrier(Device(kind="cuda", backend="gloo", index=0, sharing=2))
    barrier(Device(kind="cpu", backend="gloo"))
    assert barriers == [[3], None, None]
