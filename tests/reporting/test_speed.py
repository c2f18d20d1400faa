"""Speed figures of a report: rates of loads, MFU, packed over full rows, unfused over fused."""

from __future__ import annotations

from dataclasses import replace

import pytest

from harness.core.cell.flops import full_config, train_flops, work_of
from harness.core.cell.timing import GpuState
from harness.core.run.report import TimedRatio
from harness.judge.evidence.cell_evidence import CellEvidence
from harness.judge.evidence.timings import Load
from harness.reporting.build import FULL_ROWS, load_rates, throughput, timed_ratios
from tests.judge.timed import timed

H200 = "NVIDIA H200"


def on(device: str, seconds: dict[Load, float], **layout: int) -> CellEvidence:
    """Every rank on this device, all rounds equal."""
    evidence = timed(seconds, jitter=0.0, **layout)
    for record in evidence.records.values():
        record.environment["device"] = device
    return evidence


def test_rates_of_a_pass_are_per_rank_over_the_work_of_all_replicas() -> None:
    evidence = on(H200, {("packed", 0): 0.5, ("rotary", 4): 0.1}, dp=2)
    (rate,) = load_rates(evidence)
    config = evidence.cell.config
    work = work_of(config)
    lengths = [document.length for document in config.documents_of(0)]
    assert (rate.load, rate.seconds) == ("packed", 0.5)
    assert rate.real_tokens_per_s == pytest.approx(sum(lengths) / 0.5 / 2)
    assert rate.slots_per_s == pytest.approx(work.slots / 0.5 / 2)
    assert rate.tflops_per_s == pytest.approx(train_flops(config.model, lengths) / 0.5 / 2 / 1e12)


def test_mfu_is_over_the_peak_of_the_device_for_the_dtype_of_the_cell() -> None:
    shown = throughput(on(H200, {("packed", 0): 0.5}))
    assert (shown.peak_tflops, shown.peak_origin) == (67, "H200 data sheet, SXM")  # the cell is fp32
    assert shown.mfu is not None
    assert shown.tflops_per_s is not None
    assert shown.mfu == pytest.approx(shown.tflops_per_s / 67)
    assert shown.loads[0].mfu == pytest.approx(shown.loads[0].tflops_per_s / 67)


def test_mfu_is_absent_with_the_reason_where_no_peak_is_known() -> None:
    evidence = on("Accelerator 9000", {("packed", 0): 0.5})
    shown = throughput(evidence)
    assert (shown.mfu, shown.loads[0].mfu, shown.peak_tflops) == (None, None, None)
    assert "'Accelerator 9000' is not in the table" in shown.peak_origin
    stated = throughput(replace(evidence, peak_tflops={"fp32": 100.0}))
    assert (stated.peak_tflops, stated.peak_origin) == (100, "stated by the matrix or the cluster profile")


def test_ranks_on_different_devices_have_no_common_peak() -> None:
    evidence = on(H200, {("packed", 0): 0.5}, dp=2)
    evidence.records[1].environment["device"] = "NVIDIA H100 PCIe"
    assert throughput(evidence).peak_origin == "ranks ran on different devices: NVIDIA H100 PCIe, NVIDIA H200"


def ratio_named(evidence: CellEvidence, what: str) -> TimedRatio:
    (ratio,) = [item for item in timed_ratios(evidence) if item.what == what]
    return ratio


def test_packed_rows_are_compared_with_full_ones_per_token_and_slot() -> None:
    """Twice the time for each token: the ratio is 2, however many slots and tokens there are."""
    config = timed({("packed", 0): 1.0}).cell.config
    real, slots = work_of(config).real_tokens, work_of(full_config(config)).slots
    evidence = on(H200, {("packed", 0): 2e-3 * real, ("full", 0): 1e-3 * slots})
    ratio = ratio_named(evidence, FULL_ROWS)
    assert (ratio.median, ratio.low, ratio.high) == tuple(pytest.approx(2.0) for _ in range(3))
    assert ratio.verdict == "slower"
    assert ratio.bound.value == pytest.approx(1 / 0.9)


def test_without_full_rows_there_is_no_such_ratio() -> None:
    assert FULL_ROWS not in [item.what for item in timed_ratios(on(H200, {("packed", 0): 1.0}))]


@pytest.mark.parametrize("fused", [False, True])
def test_unfused_over_fused_whichever_the_cell_itself_runs(fused: bool) -> None:
    own, other = ("rotary_other", "rotary") if fused else ("rotary", "rotary_other")
    evidence = on(H200, {(own, 4): 2.0, (own, 256): 6.0, (other, 4): 1.0, (other, 256): 1.0})
    config = evidence.cell.config
    cell = replace(evidence.cell, config=replace(config, model=replace(config.model, rope_fusion=fused)))
    evidence = replace(evidence, cell=cell)
    medians = [
        ratio_named(evidence, f"rotary function, unfused over fused, {count} documents").median for count in (4, 256)
    ]
    assert medians == [pytest.approx(2.0), pytest.approx(6.0)]


def test_memory_and_the_state_of_the_gpu_are_shown() -> None:
    evidence = on(H200, {("packed", 0): 0.5}, dp=2)
    state = GpuState(when="before", sm_clock_mhz=1980)
    for rank, record in evidence.records.items():
        record.peak_memory_bytes, record.peak_reserved_bytes = 10 + rank, 20 + rank
        record.environment["memory_limit_bytes"] = str(100 - rank)
        record.gpu_states, record.warmup_rounds = [state], 3
    shown = throughput(evidence)
    assert (shown.peak_memory_bytes, shown.peak_reserved_bytes, shown.memory_limit_bytes) == (11, 21, 99)
    assert (shown.gpu_states, shown.warmup_rounds) == ([state], 3)
