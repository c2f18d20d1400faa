"""Time by number of documents in a pack: a loop over documents is found slow, noise is not."""

from __future__ import annotations

import pytest

from harness.core.outcomes import Lane, LaneVerdict, Outcome
from harness.judge.checks.throughput import segment_slope
from tests.judge.simulator import judge, the_only_finding
from tests.judge.timed import slope, timed


def test_a_rotary_function_that_takes_seven_times_as_long_is_named_with_its_factor() -> None:
    finding = the_only_finding(timed(slope("rotary", 0.7) | slope("step", 0.1)), "segment_slope")
    assert (finding.lane, finding.where) == (Lane.THROUGHPUT, {"leg": "timing", "part": "rotary"})
    assert finding.measured == pytest.approx(7, rel=0.2)
    assert finding.fault_class == "F throughput: time grows with the number of documents"
    assert "the THD rotary function alone takes " in finding.message
    assert "in 7 rounds) as long with 256 documents in a pack as with 4 in one of the same length" in finding.message


def test_a_step_that_takes_a_third_longer_is_beyond_its_bound_and_a_rotary_function_is_not() -> None:
    assert [item.where["part"] for item in segment_slope(timed(slope("step", 0.14), jitter=0.01))] == ["step"]
    assert segment_slope(timed(slope("rotary", 0.14), jitter=0.01)) == []


@pytest.mark.parametrize("jitter", [0.0, 0.05, 0.2, 0.5])
def test_flat_times_pass_however_noisy(jitter: float) -> None:
    evidence = timed(slope("rotary", 0.1) | slope("step", 0.1), jitter=jitter)
    verdict = judge(evidence)
    assert (verdict.outcome, verdict.lanes[Lane.THROUGHPUT]) == (Outcome.PASS, LaneVerdict.PASS)


def test_a_large_factor_in_few_rounds_is_no_proof() -> None:
    assert segment_slope(timed(slope("rotary", 0.7), rounds=6)) == []


def test_a_round_takes_as_long_as_its_slowest_rank() -> None:
    evidence = timed(slope("step", 0.1), jitter=0.0, pp=2)
    for seen in evidence.records[1].timings:
        seen.seconds *= 3.0 if seen.documents == 256 else 0.5
    (finding,) = segment_slope(evidence)
    assert finding.measured == pytest.approx(3)


def test_a_matrix_may_widen_the_bounds() -> None:
    evidence = timed(slope("rotary", 0.7))
    wide = evidence.tolerances.rotary_slope.__class__(value=10.0, unit="factor", origin="matrix")
    evidence.tolerances = evidence.tolerances.__class__(**{**vars(evidence.tolerances), "rotary_slope": wide})
    assert segment_slope(evidence) == []
