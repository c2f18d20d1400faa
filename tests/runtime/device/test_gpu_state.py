"""The state of a GPU: names of throttle reasons, sampling, and the reason why there is no state without a GPU."""

from __future__ import annotations

import threading

import pytest
import torch

from harness.core.cell.timing import GpuState
from harness.runtime.device.gpu_state import busiest, gpu_state, reasons_of, sampled
from harness.runtime.device.placement import Device


@pytest.mark.parametrize(
    ("mask", "names"),
    [
        (0x0, []),
        (0x1, []),  # idle
        (0x4, ["software power cap"]),
        (0x68, ["hardware slowdown", "software thermal slowdown", "hardware thermal slowdown"]),
        (0x1004, ["software power cap", "unknown 0x1000"]),
    ],
)
def test_reasons_for_lower_clocks_have_names(mask: int, names: list[str]) -> None:
    assert reasons_of(mask) == names


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU: tests/gpu reads its state")
def test_without_a_gpu_every_field_is_none_and_the_reason_is_given() -> None:
    state = gpu_state(Device(kind="cuda", backend="nccl", index=0), "before")
    assert state.missing
    assert (state.when, state.sm_clock_mhz, state.power_w, state.slowed_by) == ("before", None, None, None)


def test_of_the_samples_under_load_the_busiest_counts_and_every_reason_for_lower_clocks() -> None:
    samples = iter([(90.0, []), (690.0, ["software power cap"]), (650.0, ["hardware slowdown"]), (80.0, None)])
    states = [GpuState(when="under load", power_w=power, slowed_by=reasons) for power, reasons in samples]
    assert busiest(states) == [
        GpuState(when="under load", power_w=690.0, slowed_by=["hardware slowdown", "software power cap"])
    ]
    assert busiest([]) == []


def test_a_gpu_is_sampled_while_something_runs() -> None:
    enough = threading.Event()
    requested: list[int] = []

    def ask() -> GpuState:
        requested.append(1)
        if len(requested) == 3:
            enough.set()
        return GpuState(when="under load", power_w=float(len(requested)))

    with sampled(ask) as states:
        enough.wait()
    assert len(states) == len(requested) >= 3
