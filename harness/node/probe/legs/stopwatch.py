"""Timing of loads: by CUDA events on a GPU, by CPU time of the process on a CPU."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch

from harness.node.device.placement import Device

Run = Callable[[], None]
Reading = Callable[[], float]  # seconds; on a GPU only after a synchronisation


def stopwatch(device: Device) -> Callable[[Run], Reading]:
    """A function that runs a load and returns its reading, to be called later so as not to synchronise now."""
    return between_events if device.kind == "cuda" else by_processor


def between_events(run: Run) -> Reading:
    """Time from the load's first to its last kernel on the current stream."""
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
    begin.record()
    run()
    end.record()
    return lambda: begin.elapsed_time(end) / 1000


def by_processor(run: Run) -> Reading:
    """CPU time of this process: other processes may share the cores, and gloo sleeps while it waits."""
    begin = time.process_time()
    run()
    seconds = time.process_time() - begin
    return lambda: seconds
