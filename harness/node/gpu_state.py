"""Clocks, power, temperature and reasons for lower clocks of a rank's GPU, as NVML tells them (package nvidia-ml-py).

Read beside what is timed, never while it is. What cannot be read stays None, with the reason: it spoils no timing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from harness.node.device import Device
from harness.words.timing import GpuState

# nvml.h: nvmlClocksEventReason*; GpuIdle (0x1) says that nothing runs, not that something slows it down.
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
    """Names of the bits that are set, in the order of the bits."""
    unknown = mask & ~(sum(REASONS) | 0x1)
    return [name for bit, name in REASONS.items() if mask & bit] + ([f"unknown {unknown:#x}"] if unknown else [])


def gpu_state(device: Device, when: str) -> GpuState:
    """The state of the GPU now; `when` as in GpuState. A device without an NVML says why."""
    try:
        import pynvml
    except ImportError:
        return GpuState(when=when, missing="package nvidia-ml-py is not there")
    try:
        pynvml.nvmlInit()
        handle = pynvml.nvmlDeviceGetHandleByUUID(f"GPU-{torch.cuda.get_device_properties(device.index or 0).uuid}")
    except Exception as error:  # whatever keeps the driver from answering must not end a cell
        return GpuState(when=when, missing=f"{type(error).__name__}: {error}")
    return _read(pynvml, handle, when)


def _read(nvml: Any, handle: Any, when: str) -> GpuState:
    """Every field by itself: machines differ in what they tell."""
    missing: list[str] = []

    def ask(name: str, question: Callable[[], Any]) -> Any:
        try:
            return question()
        except Exception as error:
            missing.append(f"{name}: {error}")
            return None

    # The name changed with driver 535.
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
