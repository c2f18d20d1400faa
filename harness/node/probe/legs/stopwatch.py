"""Times of loads: between two CUDA events on a GPU, processor time on a CPU."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch

from harness.node.device.placement import Device

Run = Callable[[], None]
Reading = Callable[[], float]  # seconds; on a GPU only after a synchronisation


def stopwatch(device: Device) -> Callable[[Run], Reading]:
    """What runs a load and gives its time, to be read later, so that reading does not stop the GPU."""
    return between_events if device.kind == "cuda" else by_processor


def between_events(run: Run) -> Reading:
    """From when the GPU comes to the load until it is through with it."""
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
    begin.record()
    run()
    end.record()
    return lambda: begin.elapsed_time(end) / 1000


def by_processor(run: Run) -> Reading:
    """What this process computed: others may share the processor, and gloo sleeps in waits."""
    begin = time.process_time()
    run()
    seconds = time.process_time() - begin
    return lambda: seconds
