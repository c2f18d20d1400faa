"""Against earlier green runs: only slower beyond bound and noise is a finding, which names the runs."""

from __future__ import annotations

from dataclasses import replace

import pytest

from harness.core.cell.timing import Timed
from harness.core.outcomes import Lane, LaneVerdict, Outcome, Severity
from harness.judge.checks.throughput import slower_than_history
from harness.judge.evidence.cell_evidence import CellEvidence
from harness.judge.stats.baseline import Baseline, Sample
from harness.reporting.build import throughput
from tests.judge.simulator import config_of, evidence_for, judge


def after(earlier: list[float], *, seconds: float = 0.1, hardware: str = "EPYC x 8", runs: int = 10) -> CellEvidence:
    """A cell of two ranks, of which the slower takes `seconds` per step, and its earlier times, the newest first."""
    evidence = evidence_for(config_of("reference", tp=2))
    assert evidence.control is not None
    for record in (*evidence.records.values(), *evidence.control.records.values()):
        record.environment |= {"device": "cpu", "processor": "EPYC x 8"}
    for rank, record in evidence.records.items():
        for step in record.steps:
            step.busy_s = 99.0 if step.step == 0 else seconds * (1 if rank else 0.5)
    found = [
        Sample(run_id=f"night-{number}", started=f"2026-08-{20 - number:02d}T03:00:00Z", seconds=one)
        for number, one in enumerate(earlier)
    ]
    evidence.before = Baseline(runs=runs, samples={hardware: found})
    return evidence


NIGHTS = [0.1, 0.101, 0.099, 0.102, 0.1, 0.098, 0.1, 0.1, 0.099, 0.101]


def on_gpu(evidence: CellEvidence, seconds: float | None) -> CellEvidence:
    """The same on GPUs; `seconds`: of a pass in the timing leg, None without one."""
    assert evidence.before is not None
    (samples,) = evidence.before.samples.values()
    evidence.before = replace(evidence.before, samples={"NVIDIA H200": samples})
    for rank, record in evidence.records.items():
        record.environment = {**record.environment, "device": "NVIDIA H200"}
        if seconds is not None:
            times = [seconds * (1 + 0.01 * rank + 0.1 * (number == 3)) for number in range(7)]
            record.timings = [
                Timed(load="packed", documents=0, round=number, seconds=one) for number, one in enumerate(times)
            ]
    return evidence


def test_on_a_gpu_the_pass_of_the_timing_leg_is_compared_and_not_the_training_step() -> None:
    assert slower_than_history(on_gpu(after(NIGHTS, seconds=9.0), 0.1)) == []
    (finding,) = slower_than_history(on_gpu(after(NIGHTS, seconds=0.1), 0.15))
    assert finding.where == {"leg": "timing"}
    assert finding.measured == pytest.approx(1.515)
    assert finding.message.startswith("a pass of the timing leg takes 152 ms, 1.51 times the median of 100 ms")
    assert throughput(on_gpu(after(NIGHTS), 0.15)).packed_s == pytest.approx(0.1515)


def test_the_code_of_the_earlier_runs_is_named() -> None:
    evidence = after(NIGHTS, seconds=0.15)
    assert evidence.before is not None
    (samples,) = evidence.before.samples.values()
    versioned = [replace(one, version=f"megatron-lm main = {number // 4}") for number, one in enumerate(samples)]
    evidence.before = replace(evidence.before, samples={"EPYC x 8": versioned})
    (finding,) = slower_than_history(evidence)
    named = "megatron-lm main = 0, megatron-lm main = 1, megatron-lm main = 2"
    assert finding.message.endswith(f"and 7 more), of {named}")


@pytest.mark.parametrize("seconds", [0.05, 0.1, 0.112])
def test_about_as_long_or_shorter_passes_and_is_shown(seconds: float) -> None:
    evidence = after(NIGHTS, seconds=seconds)
    assert (judge(evidence).outcome, judge(evidence).lanes[Lane.THROUGHPUT]) == (Outcome.PASS, LaneVerdict.PASS)
    (ratio,) = throughput(evidence).ratios
    assert (ratio.what, ratio.verdict, ratio.rounds) == ("over earlier runs", "no difference", 10)


def test_only_so_many_of_the_newest_runs_count() -> None:
    earlier = [0.1] * 8 + [0.3] * 8  # it was fixed since
    assert judge(after(earlier, seconds=0.2, runs=8)).outcome is Outcome.FAIL
    assert judge(after(earlier, seconds=0.2, runs=16)).outcome is Outcome.PASS


def test_too_few_runs_on_this_hardware_are_a_warning() -> None:
    for evidence, count in ((after(NIGHTS[:3], seconds=9.0), 3), (after(NIGHTS, seconds=9.0, hardware="old x 4"), 0)):
        (finding,) = slower_than_history(evidence)
        assert finding.severity is Severity.WARNING
        assert finding.message == f"no baseline yet ({count} of 5 green runs on this hardware)"
        assert judge(evidence).outcome is Outcome.PASS
        assert judge(evidence).lanes[Lane.THROUGHPUT] is LaneVerdict.SKIP


def test_there_is_no_warning_where_the_matrix_does_not_ask_for_a_comparison() -> None:
    evidence = after(NIGHTS, seconds=9.0)
    evidence.before = None
    assert slower_than_history(evidence) == []


def test_a_rank_without_times_gives_no_verdict() -> None:
    evidence = after(NIGHTS, seconds=9.0)
    evidence.records[1].steps[1].busy_s = 0.0
    for step in evidence.records[1].steps:
        step.busy_s = 0.0
    assert slower_than_history(evidence) == []
    verdict = judge(evidence)
    assert verdict.outcome is Outcome.ERROR
    assert verdict.reason.startswith("times cannot be compared with earlier runs: record of rank 1: ")
