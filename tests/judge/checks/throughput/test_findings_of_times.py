"""Findings about times, compared whole."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from harness.core.cell.config import TrainConfig
from harness.core.cell.timing import Timed
from harness.core.packing.documents import DocumentsConfig
from harness.core.tolerances import Bound
from harness.judge.checks import throughput
from harness.judge.evidence.cell_evidence import CellEvidence
from harness.judge.stats.baseline import Baseline, Sample
from tests.judge.checks.whole import Cases, of
from tests.judge.timed import slope, timed

cases = Cases()


def factor(value: float) -> Bound:
    return Bound(value=value, unit="factor", origin="the matrix")


@cases(throughput.packed_slower)
def packed_rows_that_take_twice_as_long() -> CellEvidence:
    return timed({("packed", 0): 0.2, ("unpacked", 0): 0.1}, jitter=0.0)


@cases(throughput.packed_slower)
def packed_rows_within_the_bound_of_the_matrix() -> CellEvidence:
    evidence = timed({("packed", 0): 0.2, ("unpacked", 0): 0.1}, jitter=0.0)
    evidence.tolerances = replace(evidence.tolerances, packed_slower=factor(2.5))
    return evidence


@cases(throughput.packed_slower)
def loads_that_two_ranks_could_not_time() -> CellEvidence:
    evidence = timed({("packed", 0): 0.2, ("unpacked", 0): 0.1}, jitter=0.0, tp=2)
    for record in evidence.records.values():
        record.timings, record.untimed = [], {"packed": "too little memory", "unpacked": "too little memory"}
    evidence.records[1].untimed = {"unpacked": "too many rows", "rotary": "no fused function"}
    return evidence


@cases(throughput.packed_slower)
def an_unpacked_load_alone_that_could_not_be_timed() -> CellEvidence:
    evidence = timed({("packed", 0): 0.2}, jitter=0.0)
    evidence.records[0].untimed = {"unpacked": "too many rows"}
    return evidence


@cases(throughput.segment_slope)
def a_rotary_function_and_a_step_that_grow() -> CellEvidence:
    return timed(slope("rotary", 0.7) | slope("step", 0.3), jitter=0.0)


@cases(throughput.segment_slope)
def a_rotary_function_that_could_not_be_timed_beside_a_step_that_grows() -> CellEvidence:
    evidence = timed(slope("step", 0.3), jitter=0.0)
    evidence.records[0].untimed = {"rotary": "it has no fused rotary function"}
    return evidence


@cases(throughput.segment_slope)
def times_with_one_number_of_documents() -> CellEvidence:
    return timed({("step", 4): 0.1}, jitter=0.0)


@cases(throughput.segment_slope)
def times_with_two_numbers_of_documents() -> CellEvidence:
    return timed({("step", 4): 0.1, ("step", 256): 0.2}, jitter=0.0)


def against(times: float) -> CellEvidence:
    """A cell that takes so many times as long as its base."""
    evidence = timed({("turn", 0): 0.10045 * times}, jitter=0.0)
    evidence.base = timed({("turn", 0): 0.10045}, jitter=0.0)
    return evidence


@cases(throughput.slower_than)
def a_stack_that_takes_a_third_longer() -> CellEvidence:
    return against(1.3)


@cases(throughput.slower_than)
def a_stack_within_the_bound_of_the_matrix() -> CellEvidence:
    evidence = against(1.3)
    evidence.tolerances = replace(evidence.tolerances, slower_than=factor(1.4))
    return evidence


@cases(throughput.slower_than)
def turns_that_could_not_be_timed() -> CellEvidence:
    evidence = against(1.3)
    evidence.records[0].timings, evidence.records[0].untimed = [], {"turn": "the other cell did not finish turn 3"}
    return evidence


@cases(throughput.slower_than)
def a_cell_without_a_base() -> CellEvidence:
    return replace(against(1.3), base=None)


def after(seconds: float, *, nights: int = 10, versions: int = 0, gpu: bool = False) -> CellEvidence:
    """A cell with steps of so many seconds, and that many earlier runs with steps of 0.1 s, the newest first."""
    device = {"device": "NVIDIA H200"} if gpu else {"device": "cpu", "processor": "EPYC x 8"}
    evidence = of("reference")
    for record in evidence.records.values():
        record.environment |= device
        for step in record.steps:
            step.busy_s = 99.0 if step.step == 0 else seconds
    samples = [
        Sample(
            run_id=f"night-{number}",
            started=f"2026-08-{20 - number:02d}T03:00:00Z",
            seconds=0.10045 + 0.001 * (number % 3 - 1),
            version=f"main = {number % versions}" if versions else "",
        )
        for number in range(nights)
    ]
    evidence.before = Baseline(runs=10, samples={device.get("processor", device["device"]): samples})
    return evidence


@cases(throughput.slower_than_history)
def a_step_half_as_long_again() -> CellEvidence:
    return after(0.15045)


@cases(throughput.slower_than_history)
def a_step_after_six_runs_of_three_versions() -> CellEvidence:
    return after(0.5, nights=6, versions=3)


@cases(throughput.slower_than_history)
def a_step_after_ten_runs_of_five_versions() -> CellEvidence:
    return after(0.15, versions=5)


@cases(throughput.slower_than_history)
def a_step_within_the_bound_of_the_matrix() -> CellEvidence:
    evidence = after(0.15)
    evidence.tolerances = replace(evidence.tolerances, slower_than_history=factor(1.6))
    return evidence


@cases(throughput.slower_than_history)
def a_pass_on_a_gpu() -> CellEvidence:
    evidence = after(9.0, gpu=True)
    evidence.records[0].timings = [Timed(load="packed", documents=0, round=number, seconds=0.15) for number in range(7)]
    return evidence


@cases(throughput.slower_than_history)
def a_gpu_without_a_timing_leg() -> CellEvidence:
    return after(9.0, gpu=True)


@cases(throughput.slower_than_history)
def a_single_step() -> CellEvidence:
    evidence = after(9.0)
    evidence.cell = replace(evidence.cell, config=replace(evidence.cell.config, train=TrainConfig(steps=1)))
    return evidence


@cases(throughput.slower_than_history)
def a_single_step_on_a_gpu_with_too_few_runs() -> CellEvidence:
    evidence = after(9.0, nights=4, gpu=True)
    evidence.records[0].timings = [Timed(load="packed", documents=0, round=number, seconds=0.15) for number in range(7)]
    evidence.cell = replace(evidence.cell, config=replace(evidence.cell.config, train=TrainConfig(steps=1)))
    return evidence


@cases(throughput.slower_than_history)
def four_earlier_runs() -> CellEvidence:
    return after(9.0, nights=4)


@cases(throughput.slower_than_history)
def five_earlier_runs_and_no_time_of_this_one() -> CellEvidence:
    evidence = after(9.0, nights=5)
    for step in evidence.records[0].steps:
        step.busy_s = 0.0
    return evidence


@cases(throughput.slower_than_history)
def a_cell_that_is_not_compared_with_earlier_runs() -> CellEvidence:
    return replace(after(9.0), before=None)


@cases(throughput.packed_slower)
def documents_that_differ_by_step() -> CellEvidence:
    evidence = timed({("packed", 0): 0.2, ("unpacked", 0): 0.1}, jitter=0.0)
    documents = DocumentsConfig(mode="file", lengths=(20, 7, 9))
    evidence.cell = replace(evidence.cell, config=replace(evidence.cell.config, documents=documents))
    return evidence


@pytest.mark.parametrize("check", cases.of)
def test_a_throughput_check_states_what_is_slow(check: str, golden: Callable[[str, str], None]) -> None:
    golden(f"findings/{check}.txt", cases.text(check))
