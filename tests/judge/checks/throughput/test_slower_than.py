"""Two stacks interleaved: only slower beyond the bound is a finding."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from harness.core.cell.timing import WARMUP
from harness.core.outcomes import Lane, LaneVerdict, Outcome, Severity
from harness.judge.checks.throughput import slower_than
from harness.judge.evidence.cell_evidence import CellEvidence
from harness.judge.verdict import judge_cell
from harness.reporting.build import throughput
from tests.judge.simulator import TODAY, config_of, evidence_for, judge
from tests.judge.timed import timed


def against(factor: float, *, rounds: int = 7, jitter: float = 0.01) -> CellEvidence:
    """A cell that takes `factor` times as long as its base."""
    evidence = timed({("turn", 0): 0.1 * factor}, rounds=rounds, jitter=jitter)
    base = timed({("turn", 0): 0.1}, rounds=rounds, jitter=0.0)
    evidence.base = base
    return evidence


@pytest.mark.parametrize(("factor", "verdict"), [(0.5, "faster"), (1.0, "no difference"), (1.08, "no difference")])
def test_a_stack_that_is_faster_or_about_as_fast_passes_and_the_verdict_is_shown(factor: float, verdict: str) -> None:
    evidence = against(factor)
    assert (judge(evidence).outcome, judge(evidence).lanes[Lane.THROUGHPUT]) == (Outcome.PASS, LaneVerdict.PASS)
    (ratio,) = throughput(evidence).ratios
    assert (ratio.what, ratio.verdict) == ("over stack default, interleaved", verdict)


def test_only_rounds_in_which_both_took_their_turn_count() -> None:
    evidence = against(1.3)
    assert evidence.base is not None
    base = evidence.base.records[0]
    base.timings = base.timings[:6]
    assert slower_than(evidence) == []


def _no_records(base: CellEvidence) -> None:
    base.records = {}


def _damaged(base: CellEvidence) -> None:
    base.damaged = ["rank-00000.json cannot be read: it is empty"]


def _fewer(base: CellEvidence) -> None:
    base.cell = replace(base.cell, config=replace(base.cell.config, timing=replace(base.cell.config.timing, rounds=6)))
    base.config, base.records[0].timings = base.cell.config, base.records[0].timings[:6]


def _another_attempt(base: CellEvidence) -> None:
    base.attempt = 2
    assert base.result is not None
    base.result.attempt = 2
    for record in base.records.values():
        record.attempt = 2


def _on_a_gpu(base: CellEvidence) -> None:
    base.records[0].cpu_stubs = []
    base.records[0].warmup_rounds = WARMUP["cuda"]
    base.records[0].environment = base.records[0].environment | {
        "device": "NVIDIA H200",
        "torch_device": "cuda:0",
        "backend": "nccl",
    }


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (_no_records, "no rank records: no reason given"),
        (_damaged, "rank-00000.json cannot be read: it is empty"),
        (_fewer, "they share 6 of 7 turns, and no rank states why"),
        (_another_attempt, "they share 0 of 7 turns, and no rank states why"),
        (_on_a_gpu, "it ran on cuda, this cell on cpu"),
    ],
)
@pytest.mark.parametrize("factor", [1.0, 1.3])
def test_a_base_that_cannot_be_compared_with_leaves_the_cell_undecided(
    change: Callable[[CellEvidence], None], problem: str, factor: float
) -> None:
    evidence = against(factor)
    assert evidence.base is not None
    change(evidence.base)
    verdict = judge(evidence)
    assert (verdict.outcome, verdict.lanes[Lane.THROUGHPUT]) == (Outcome.ERROR, LaneVerdict.SKIP)
    assert verdict.reason.startswith(f"the cell cannot be timed against its base: {problem}")
    assert verdict.findings == []


def test_a_base_that_is_not_in_the_run_leaves_the_cell_undecided() -> None:
    evidence = against(1.0)
    evidence.base, evidence.cell = None, replace(evidence.cell, base="tp1-old")
    verdict = judge(evidence)
    reason = "the cell cannot be timed against its base, cell tp1-old: it is not in the run"
    assert (verdict.outcome, verdict.reason) == (Outcome.ERROR, reason)


def test_the_base_itself_needs_no_other_cell() -> None:
    base = against(1.0).base
    assert base is not None
    base.cell = replace(
        base.cell, config=replace(base.cell.config, timing=replace(base.cell.config.timing, first=True))
    )
    base.config = base.cell.config
    assert judge(base).outcome is Outcome.PASS


def test_a_cell_that_only_misses_its_base_can_be_a_control() -> None:
    evidence = evidence_for(config_of("sft"))
    control = against(1.0)
    control.base = None
    assert judge(control).outcome is Outcome.ERROR
    assert judge_cell(evidence, today=TODAY, control=judge(control)).outcome is Outcome.PASS


def test_a_base_without_times_that_says_why_is_a_warning() -> None:
    evidence = against(1.3)
    assert evidence.base is not None
    record, base = evidence.records[0], evidence.base.records[0]
    record.timings = record.timings[:3]
    record.untimed = {"turn": "the cell of the other stack did not finish turn 6"}
    base.timings, base.untimed = base.timings[:4], {"turn": "the rounds would end too near the deadline"}
    verdict = judge(evidence)
    assert (verdict.outcome, [finding.severity for finding in verdict.findings]) == (Outcome.PASS, [Severity.WARNING])


def test_turns_that_were_not_timed_are_a_warning_with_the_reason() -> None:
    evidence = against(1.3)
    record = evidence.records[0]
    record.timings, record.untimed = [], {"turn": "the cell of the other stack did not finish turn 3"}
    (finding,) = slower_than(evidence)
    assert (finding.severity, finding.message) == (
        Severity.WARNING,
        "not timed: the cell of the other stack did not finish turn 3",
    )
    assert judge(evidence).outcome is Outcome.PASS
    assert judge(evidence).lanes[Lane.THROUGHPUT] is LaneVerdict.SKIP
