"""Timing of loads: with CUDA events on a GPU, by CPU time of the process on the CPU."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch

from harness.node.device.placement import Device

Run = Callable[[], None]
Reading = Callable[[], float]  # seconds; on a GPU only after a synchronisation


def stopwatch(device: Device) -> Callable[[Run], Reading]:
    """A function that runs a load and returns its reading, a function to call later, since it synchronises."""
    return by_events if device.kind == "cuda" else by_cpu_time


def by_events(run: Run) -> Reading:
    """Time from the load's first kernel to its last on the current stream."""
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
    begin.record()
    run()
    end.record()
    return lambda: begin.elapsed_time(end) / 1000


def by_cpu_time(run: Run) -> Reading:
    """CPU time of this process: other processes may share the cores, and gloo sleeps while it waits."""
    begin = time.process_time()
    run()
    seconds = time.process_time() - begin
    return lambda: seconds
