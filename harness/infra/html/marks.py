"""Symbols, words and link targets that all pages share."""

from __future__ import annotations

import hashlib
import re

from harness.core.outcomes import Outcome
from harness.judge.report.model import ChangeKind, ReportCell

# outcome -> (symbol, word); both are shown, so that the meaning never depends on colour alone
OUTCOME_MARKS = {
    Outcome.PASS: ("✓", "pass"),
    Outcome.FAIL: ("✕", "fail"),
    Outcome.XFAIL: ("✕", "known failure"),
    Outcome.XPASS: ("✓", "unexpected pass"),
    Outcome.REJECTED: ("–", "rejected"),  # noqa: RUF001 - a dash, on purpose
    Outcome.ERROR: ("!", "error"),
    Outcome.FLAKY: ("↻", "flaky"),
    Outcome.NOT_RUN: ("○", "not run"),
}

# change between two runs -> CSS class of the outcome whose colour it has
CHANGE_CLASSES = {
    ChangeKind.NEWLY_FAILING: "o-FAIL",
    ChangeKind.UNJUDGED: "o-FAIL",
    ChangeKind.STILL_FAILING: "o-FAIL",
    ChangeKind.UNDECIDED: "o-ERROR",
    ChangeKind.FLAKY: "o-FLAKY",
    ChangeKind.KNOWN_FAILURE: "o-XFAIL",
    ChangeKind.NO_LONGER_RUN: "o-REJECTED",
    ChangeKind.FIXED: "o-PASS",
    ChangeKind.NEW: "o-REJECTED",
    ChangeKind.GONE: "o-REJECTED",
    ChangeKind.UNCHANGED: "o-PASS",
}


def anchor(cell_id: str) -> str:
    """Fragment identifier of a cell's details."""
    name = re.sub(r"[^A-Za-z0-9._-]", "_", cell_id)
    return f"cell-{name}" if len(name) < 200 else f"cell-{hashlib.sha256(name.encode()).hexdigest()}"


def is_control(cell: ReportCell) -> bool:
    """Whether the cell is a control, with which others are compared."""
    return cell.role == "control" or cell.control is None
