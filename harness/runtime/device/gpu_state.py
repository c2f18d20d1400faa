"""Clocks, power, temperature and throttle reasons of a rank's GPU, from NVML (package nvidia-ml-py).

Read between timed rounds, never inside one. A field that cannot be read is None, with the reason.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch

from harness.core.cell.timing import GpuState, Moment
from harness.runtime.device.placement import Device

# nvml.h: nvmlClocksEventReason*, without GpuIdle (0x1), which is not throttling.
REASONS = {
    0x2: "application clocks setting",
    0x4: "software power cap",
    0x8: "hardware slowdown",
    0x10: "sync boost",
    0x20: "software thermal slowdown",
    0x40: "hardware thermal slowdown",
    0x80: "hardware power brake",
    0x100: "display clocks setting",
}


def reasons_of(mask: int) -> list[str]:
    """Return the names of the bits set in NVML's mask, lowest first."""
    unknown = mask & ~(sum(REASONS) | 0x1)
    return [name for bit, name in REASONS.items() if mask & bit] + ([f"unknown {unknown:#x}"] if unknown else [])


def gpu_state(device: Device, when: Moment) -> GpuState:
    """Return the state of the GPU now; `when` as in GpuState. Without NVML, `missing` says why."""
    try:
        import pynvml
    except ImportError:
        return GpuState(when=when, missing="package nvidia-ml-py is not installed")
    try:
        pynvml.nvmlInit()
        # By UUID: NVML numbers all GPUs of the node, torch only those in CUDA_VISIBLE_DEVICES.
        handle = pynvml.nvmlDeviceGetHandleByUUID(f"GPU-{torch.cuda.get_device_properties(device.index or 0).uuid}")
    except Exception as error:  # a driver error must not end a cell
        return GpuState(when=when, missing=f"{type(error).__name__}: {error}")
    return _read(pynvml, handle, when)


SAMPLE_S = 0.05


@contextmanager
def sampled(ask: Callable[[], GpuState]) -> Iterator[list[GpuState]]:
    """Sample the state of a GPU in a thread every SAMPLE_S while the body runs; at least once."""
    states: list[GpuState] = []
    over = threading.Event()

    def sample() -> None:
        while True:
            states.append(ask())
            if over.wait(SAMPLE_S):
                return

    thread = threading.Thread(target=sample, daemon=True)
    thread.start()
    try:
        yield states
    finally:
        over.set()
        thread.join()


def busiest(states: Sequence[GpuState]) -> list[GpuState]:
    """Return the sample with the highest power, with the throttle reasons of all samples; empty for no samples."""
    if not states:
        return []
    peak = max(states, key=lambda state: state.power_w or 0.0)
    reported = [state.slowed_by for state in states if state.slowed_by is not None]
    slowed = sorted({reason for reasons in reported for reason in reasons}) if reported else None
    return [replace(peak, slowed_by=slowed)]


def _read(nvml: Any, handle: Any, when: Moment) -> GpuState:
    """Return the state of a GPU. Each field is queried on its own, since GPUs differ in what they report."""
    missing: list[str] = []

    def ask(name: str, question: Callable[[], Any]) -> Any:
        try:
            return question()
        except Exception as error:
            missing.append(f"{name}: {error}")
            return None

    # Renamed in driver 535.
    reasons = getattr(nvml, "nvmlDeviceGetCurrentClocksEventReasons", None)
    reasons = reasons or nvml.nvmlDeviceGetCurrentClocksThrottleReasons
    return GpuState(
        when=when,
        sm_clock_mhz=ask("SM clock", lambda: nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM)),
        memory_clock_mhz=ask("memory clock", lambda: nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_MEM)),
        power_w=ask("power", lambda: nvml.nvmlDeviceGetPowerUsage(handle) / 1000),
        power_limit_w=ask("power limit", lambda: nvml.nvmlDeviceGetEnforcedPowerLimit(handle) / 1000),
        temperature_c=ask("temperature", lambda: nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU)),
        slowed_by=ask("reasons for lower clocks", lambda: reasons_of(int(reasons(handle)))),
        missing="; ".join(missing),
    )
