"""A known upstream issue is named in every output about a failed cell."""

from __future__ import annotations

import io

import pytest

from harness.core.run.provenance import Provenance
from harness.core.run.report import Report
from harness.judge.diagnosis.known_issues import KNOWN_ISSUES
from harness.reporting.console import print_report
from harness.reporting.html.report import render_html
from harness.reporting.render_issue import Issue, render_issue
from harness.reporting.render_markdown import render_markdown
from tests.hostile import read_markdown
from tests.judge.diagnosis.test_known_issues import ran
from tests.judge.reports import build_report
from tests.judge.simulator import at, config_of, drop_params, run_of
from tests.reporting.html.test_report import Page

CONFIG = config_of("bridge_offline", pp=4)
SENTENCE = "Megatron-Bridge issue 2952, fixed in megatron-bridge 0.5.0"
LINK = "https://github.com/NVIDIA-NeMo/Megatron-Bridge/issues/2952"


@pytest.fixture(scope="module")
def report() -> Report:
    plan, found = run_of([CONFIG])
    *_, evidence = found.values()
    ran(evidence, "0.4.2", "megatron.bridge")
    for stage in (1, 2):
        for record in at(evidence, pp=stage):
            drop_params(record)
    return build_report(plan, found.values(), today="2026-01-01", timing={})


def issue_text(report: Report) -> str:
    (cell,) = [cell for cell in report.cells if cell.role == "cell"]
    return render_issue(Issue(cell=cell, config=CONFIG, matrix="name: x\n", provenance=Provenance()))


def console_text(report: Report) -> str:
    stream = io.StringIO()
    print_report(report, [], stream)
    return stream.getvalue()


def test_the_report_as_markdown(report: Report) -> None:
    assert f"  - known: {SENTENCE}" in render_markdown(report)
    assert LINK in render_markdown(report)


def test_the_issue(report: Report) -> None:
    shown = issue_text(report)
    assert f"  - known: {SENTENCE}" in shown
    assert LINK in shown
    assert read_markdown(shown).live == []


def test_the_page(report: Report) -> None:
    page = Page(render_html(report))
    shown = page.text
    assert f"known {SENTENCE}" in shown
    assert LINK in page.links


def test_the_terminal(report: Report) -> None:
    assert f"  known: {SENTENCE} ({LINK})" in console_text(report)


def test_the_json_of_the_report_has_it_beside_the_finding(report: Report) -> None:
    (cell,) = [cell for cell in report.cells if cell.role == "cell"]
    assert {issue.text for issue in KNOWN_ISSUES} >= {finding.known for finding in cell.findings if finding.known}
    assert [finding.check for finding in cell.findings if finding.known] == ["params_present"]
