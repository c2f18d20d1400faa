"""Every report shows a known failure that expired, passes or fails otherwise."""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import replace

import pytest

from harness.core.outcomes import Outcome
from harness.core.run.report import Report
from harness.core.run.run_plan import XFail
from harness.history.trends import run_row
from harness.reporting.console import print_report
from harness.reporting.html.report import render_html
from harness.reporting.render_json import render_json
from harness.reporting.render_junit import render_junit
from harness.reporting.render_markdown import render_markdown
from tests.judge.simulator import config_of, evidence_for, judge
from tests.sample_report import sample_report

ENTRY = XFail(pattern="*", reason="middle stages get nothing", link="https://example.org/4092")
STATES = {
    "expected": (ENTRY, True, Outcome.XFAIL, "middle stages get nothing"),
    "expired": (replace(ENTRY, expires="2025-12-31"), True, Outcome.FAIL, "the xfail entry expired on 2025-12-31"),
    "elsewhere": (replace(ENTRY, lanes=("throughput",)), True, Outcome.FAIL, "not as the xfail entry states"),
    "passes": (ENTRY, False, Outcome.XPASS, "passed, though the matrix expects a failure"),
    "strict": (replace(ENTRY, strict=True), False, Outcome.FAIL, "passed, though the matrix expects a failure"),
}


def report_of(state: str) -> tuple[Report, Outcome, str]:
    """A report with one cell in a state of STATES, its expected outcome, and words that every rendering must have."""
    entry, broken, outcome, words = STATES[state]
    evidence = evidence_for(config_of("sft"), xfail=entry)
    if broken:
        evidence.records[0].steps[0].grad_norm = 9.0
    verdict = judge(evidence)
    shown = {name: getattr(verdict, name) for name in ("outcome", "lanes", "findings", "reason", "known")}
    cell = replace(sample_report().cells[1], **shown)
    counts = {known: int(known is outcome) for known in Outcome}
    return replace(sample_report(), cells=[cell], rejected=[], counts=counts), outcome, words


def console(report: Report) -> str:
    stream = io.StringIO()
    print_report(report, [], stream=stream)
    return stream.getvalue()


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("render", [render_html, render_json, render_junit, render_markdown, console])
def test_every_report_shows_it(state: str, render: Callable[[Report], str]) -> None:
    report, outcome, words = report_of(state)
    assert report.cells[0].outcome is outcome
    assert words in " ".join(render(report).split())


@pytest.mark.parametrize("state", STATES)
def test_the_history_keeps_its_state(state: str) -> None:
    report, outcome, _ = report_of(state)
    (row,) = run_row(report).cells
    assert (row.outcome, row.known) == (outcome.value, "passes" if state == "strict" else state)
