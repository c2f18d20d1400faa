"""On a GPU: events, the state that NVML tells, an allocation that does not fit, and a timed cell of one rank."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from harness.core.cell.model import ModelConfig
from harness.core.cell.timing import ROUNDS, TimingConfig
from harness.core.hardware import peak_of
from harness.core.run.records import Failure
from harness.judge.failures.classification import out_of_memory, tried_bytes
from harness.probe.legs.timing import stopwatch
from harness.runtime.device.gpu_state import gpu_state
from harness.runtime.device.placement import choose_device, memory_bytes, peak_memory_bytes, peak_reserved_bytes
from tests.runtime.conftest import config, run_cells

pytestmark = pytest.mark.gpu


def test_events_see_the_work_of_the_gpu_and_not_that_of_the_host() -> None:
    device = choose_device(0, 1)
    left = torch.randn(4096, 4096, device=device.torch_device)
    watch = stopwatch(device)

    def products(count: int) -> None:
        for _ in range(count):
            left @ left

    watch(lambda: products(3))  # loads the kernel
    torch.cuda.synchronize()
    few, many = watch(lambda: products(10)), watch(lambda: products(100))
    torch.cuda.synchronize()
    assert 5 < many() / few() < 20


def test_the_driver_tells_clocks_power_and_temperature_or_why_not() -> None:
    state = gpu_state(choose_device(0, 1), "before")
    print(state)
    assert state.missing or (state.sm_clock_mhz and state.power_w and state.temperature_c)


def test_an_allocation_that_does_not_fit_is_known_by_its_text() -> None:
    device = choose_device(0, 1)
    requested = 2 * memory_bytes(device)
    with pytest.raises(torch.OutOfMemoryError) as caught:
        torch.empty(requested, dtype=torch.uint8, device=device.torch_device)
    failure = Failure(type=type(caught.value).__name__, message=str(caught.value), traceback="", time=0.0)
    assert out_of_memory(failure)
    tried = tried_bytes(failure.message)
    assert tried is not None
    assert tried == pytest.approx(requested, rel=0.01)


def test_the_peak_of_this_device_is_in_the_table() -> None:
    found = peak_of(torch.cuda.get_device_name(), "bf16")
    print(found)
    assert found.tflops or "state it as peak_tflops" in found.origin


def test_cells_on_the_gpu_are_timed_with_its_state_beside_and_one_that_does_not_fit_stops_no_other(
    tmp_path: Path,
) -> None:
    plain = replace(config(), model=ModelConfig(hidden=256, heads=4, kv_heads=4), dtype="bf16")
    cells = {
        "too large": replace(plain, fault="rotary-table-of-garbage-length"),
        "timed": replace(plain, timing=TimingConfig(documents=(2, 4), full_rows=True)),
    }
    ran = run_cells(tmp_path, cells, parallel_ranks=1)
    failed = ran["too large"].records[0]
    assert out_of_memory(failed.failure), failed.failure
    assert failed.peak_reserved_bytes
    record = ran["timed"].records[0]
    assert ran["timed"].result.status == "completed", record.failure
    assert record.cpu_stubs == []
    assert record.warmup_rounds == 3
    assert [state.when for state in record.gpu_states] == ["before", "after", "under load"]
    full = [item for item in record.timings if item.load == "full"]
    assert len(full) == ROUNDS
    assert all(item.seconds > 0 for item in full)
    assert peak_memory_bytes(choose_device(0, 1)) <= (peak_reserved_bytes(choose_device(0, 1)) or 0)
