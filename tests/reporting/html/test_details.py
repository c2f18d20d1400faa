"""What a page says of one cell."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from harness.core.outcomes import Finding, Lane
from harness.core.stack import StackFacts, Version
from harness.judge.diagnosis.known_issues import KNOWN_ISSUES
from harness.reporting.html.details import code_of, details, known_issue, quoted, ratio_words, words
from harness.reporting.html.page import RunFiles
from harness.reporting.html.report import render_html
from tests.browser.test_compare_in_browser import with_since
from tests.sample_report import sample_report


def finding(field: str = "", measured: Any = None, bound: Any = None) -> Finding:
    return Finding(
        lane=Lane.METADATA,
        check="c",
        message="m",
        where={"field": field} if field else {},
        measured=measured,
        bound=bound,
    )


@pytest.mark.parametrize(
    ("field", "value", "said"),
    [
        ("cu_seqlens_q", [0, 2, 4, 16], "3 documents of 2, 2, 12 tokens"),
        ("cu_seqlens_q_padded", [0, 4, 8], "2 documents of 4, 4 slots"),
        ("cu_seqlens_kv", [0, 9], "1 document of 9 tokens"),
        ("cu_seqlens_kv", list(range(14)), "13 documents of 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, ... tokens"),
        ("cu_seqlens_q", None, "no cu_seqlens_q at all"),
        ("cu_seqlens_q", [0, 4, 2], ""),
        ("cu_seqlens_q", [1, 4], ""),
        ("cu_seqlens_q", [0], ""),
        ("cu_seqlens_q", "text", ""),
        ("max_seqlen_q", 45, "the longest document has 45 tokens"),
        ("tokens", [0, 2], ""),
        ("", None, ""),
    ],
)
def test_values_of_packed_params_are_said_in_words(field: str, value: Any, said: str) -> None:
    assert words(value, finding(field)) == said


@pytest.mark.parametrize(
    ("measured", "bound", "said"),
    [
        (4.2, {"value": 1e-4, "unit": "relative", "control": 2.1}, "2 times the control, 2.1"),
        (0.5, {"value": 1e-3, "unit": "relative"}, "500 times the bound"),
        (0.547779, {"value": 1e-4, "unit": "relative"}, "5,480 times the bound"),
        (1e30, 1.0, "1e+30 times the bound"),
        (1.5, 1.25, "1.2 times the bound"),
        (1e-5, 1.25, ""),
        (3, [0, 1], ""),
        (True, 0.5, ""),
        (None, 1e-5, ""),
        (1.0, {"value": 1e-4, "control": 0.0}, ""),
    ],
)
def test_a_number_is_compared_with_its_control_or_bound(measured: Any, bound: Any, said: str) -> None:
    assert ratio_words(finding(measured=measured, bound=bound)) == said


@pytest.mark.parametrize("issue", KNOWN_ISSUES, ids=lambda issue: issue.name)
def test_every_known_issue_becomes_a_link(issue: Any) -> None:
    said, address = known_issue(issue.text)
    assert address == issue.link and issue.name in said and "http" not in said


def test_only_an_issue_on_github_becomes_a_link() -> None:
    for text in (
        "plain",
        "x (https://evil.example/a/b/issues/1)",
        "x (https://github.com/a/b/issues/1/../../c)",
        "x (javascript:alert(1))",
    ):
        assert known_issue(text) == (text, "")


def test_a_cell_names_the_code_of_its_stack() -> None:
    report = sample_report()
    cell = report.cells[7]
    assert code_of(report, cell) == [("stack", "default"), ("torch", "2.9.0+cpu"), ("megatron-core", "0.19.2")]
    older = StackFacts(packages=(Version(name="megatron-core", version="0.17.1"),))
    report = replace(report, provenance=replace(report.provenance, stacks={"older": older}))
    cell = replace(cell, axes={**cell.axes, "stack": "older"})
    assert code_of(report, cell) == [("stack", "older"), ("megatron-core", "0.17.1")]


def test_the_page_begins_with_its_failures() -> None:
    page = render_html(with_since())
    assert page.index('id="failures"') < page.index('id="since"') < page.index('id="grid"')


def test_a_cell_says_since_when_it_fails() -> None:
    (failing, *_), _ = details(with_since(), RunFiles())
    assert failing.since is not None and failing.since.good_run == "smoke-20260821T101530Z-11aa"


def test_checks_and_classes_of_a_report_are_quoted_from_the_documentation() -> None:
    shown, _ = details(sample_report(), RunFiles())
    found = quoted(shown)
    assert found["params_present"].anchor == "check-params-present"
    assert "packed params exist" in found["params_present"].entry.text
    assert found["A metadata: middle stages without cu_seqlens"].anchor.startswith("class-A-metadata")
    assert "params_form" not in found
