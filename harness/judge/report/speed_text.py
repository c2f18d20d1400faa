"""Texts for speed figures, shared by all renderers: peaks, GPU states, shares."""

from __future__ import annotations

from harness.core.cell.timing import GpuState
from harness.judge.report.model import Report, Throughput


def share_text(share: float | None) -> str:
    """E.g. "41.3 %"; a dash for None."""
    return "-" if share is None else f"{100 * share:.3g} %"


def peak_texts(report: Report) -> list[str]:
    """The peak that MFU refers to, or why there is none; each text once."""
    timed = [cell.throughput for cell in report.cells if cell.throughput.step_p50_s is not None]
    return list(dict.fromkeys(_peak_text(speed) for speed in timed if speed.peak_origin))


def _peak_text(speed: Throughput) -> str:
    if speed.peak_tflops is None:
        return f"No MFU: {speed.peak_origin}."
    return f"MFU: of {speed.peak_tflops:g} TFLOP/s without sparsity ({speed.peak_origin})."


def gpu_texts(report: Report) -> list[str]:
    """The GPU of rank 0 beside the timing leg of each cell."""
    found = []
    for cell in report.cells:
        states = cell.throughput.gpu_states
        if states:
            warmup = f"{cell.throughput.warmup_rounds} warm-up rounds"
            found.append(f"{cell.id}: {warmup}; {'; '.join(state_text(state) for state in states)}")
    return found


def state_text(state: GpuState) -> str:
    """E.g. "before: SM 1980 MHz, memory 3201 MHz, 412 of 700 W, 45 C, not slowed"."""
    parts = []
    if state.sm_clock_mhz is not None:
        parts.append(f"SM {state.sm_clock_mhz} MHz")
    if state.memory_clock_mhz is not None:
        parts.append(f"memory {state.memory_clock_mhz} MHz")
    if state.power_w is not None:
        limit = f" of {state.power_limit_w:.0f}" if state.power_limit_w is not None else ""
        parts.append(f"{state.power_w:.0f}{limit} W")
    if state.temperature_c is not None:
        parts.append(f"{state.temperature_c} C")
    if state.slowed_by is not None:
        parts.append(f"slowed by {', '.join(state.slowed_by)}" if state.slowed_by else "not slowed")
    if state.missing:
        parts.append(f"unknown: {state.missing}")
    return f"{state.when}: {', '.join(parts)}"
