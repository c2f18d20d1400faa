"""Two stacks interleaved: only slower beyond the bound is a finding."""

from __future__ import annotations

import pytest

from harness.core.outcomes import Lane, LaneVerdict, Outcome, Severity
from harness.judge.checks.throughput.slower_than import check
from harness.judge.evidence.cell_evidence import CellEvidence
from harness.judge.report.speed import throughput
from tests.judge.simulator import judge, the_only_finding
from tests.judge.timed import timed


def against(factor: float, *, rounds: int = 7, jitter: float = 0.01) -> CellEvidence:
    """A cell that takes `factor` times as long as its base."""
    evidence = timed({("turn", 0): 0.1 * factor}, rounds=rounds, jitter=jitter)
    base = timed({("turn", 0): 0.1}, rounds=rounds, jitter=0.0)
    evidence.base = base
    return evidence


def test_a_stack_that_takes_a_third_longer_is_slower() -> None:
    finding = the_only_finding(against(1.3), "slower_than")
    assert (finding.lane, finding.where) == (Lane.THROUGHPUT, {"leg": "timing", "base": "default"})
    assert finding.measured == pytest.approx(1.3, rel=0.05)
    assert "as long as in stack default, interleaved" in finding.message


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
    assert check(evidence) == []


def test_turns_that_were_not_timed_are_a_warning_with_the_reason() -> None:
    evidence = against(1.3)
    record = evidence.records[0]
    record.timings, record.untimed = [], {"turn": "the cell of the other stack did not finish turn 3"}
    (finding,) = check(evidence)
    assert (finding.severity, finding.message) == (
        Severity.WARNING,
        "not timed: the cell of the other stack did not finish turn 3",
    )
    assert judge(evidence).outcome is Outcome.PASS
    assert judge(evidence).lanes[Lane.THROUGHPUT] is LaneVerdict.SKIP
