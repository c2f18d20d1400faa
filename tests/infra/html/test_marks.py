"""Every outcome and every change has its look on a page."""

from __future__ import annotations

from harness.core.outcomes import Outcome
from harness.infra.html.marks import CHANGE_CLASSES, OUTCOME_MARKS
from harness.judge.report.model import ChangeKind


def test_no_outcome_and_no_change_is_left_out() -> None:
    assert set(OUTCOME_MARKS) == set(Outcome)
    assert set(CHANGE_CLASSES) == set(ChangeKind)
    assert set(CHANGE_CLASSES.values()) <= {f"o-{outcome.value}" for outcome in Outcome}
