"""junit.xml as others read it: a library that CI tools use, and the parts that GitLab shows."""

from __future__ import annotations

from dataclasses import replace
from xml.etree import ElementTree
from xml.etree.ElementTree import Element

import pytest
from junitparser import Error, Failure, JUnitXml, Skipped, TestCase, TestSuite

from harness.core.outcomes import Outcome
from harness.core.run.provenance import Provenance
from harness.core.run.report import Report
from harness.reporting.render_junit import render_junit

RESULTS = {
    Outcome.PASS: [],
    Outcome.FAIL: [Failure],
    Outcome.ERROR: [Error],
    Outcome.XFAIL: [Skipped],
    Outcome.REJECTED: [Skipped],
}


@pytest.fixture
def report(broken_report: Report) -> Report:
    """With provenance as after a real run: host, start and commit."""
    facts = {
        "started": "2026-08-21T10:15:30+00:00",
        "host": "login-1",
        "harness": "0.1.0",
        "harness_commit": "0123456789ab",
    }
    return replace(broken_report, provenance=replace(broken_report.provenance, **facts))


@pytest.fixture
def suite(report: Report) -> TestSuite:
    whole = JUnitXml.fromstring(render_junit(report).encode())
    (suite,) = whole
    assert (whole.tests, whole.failures, whole.errors, whole.skipped) == (9, 3, 1, 3)
    return suite


def outcomes(report: Report) -> dict[str, Outcome]:
    return {cell.id: cell.outcome for cell in report.cells} | {item.id: Outcome.REJECTED for item in report.rejected}


def test_the_counts_are_those_that_a_reader_computes(suite: TestSuite) -> None:
    written = (suite.tests, suite.failures, suite.errors, suite.skipped, suite.time)
    suite.update_statistics()
    assert written[:4] == (suite.tests, suite.failures, suite.errors, suite.skipped) == (9, 3, 1, 3)
    assert written[4] == 12.25


def test_every_cell_has_the_result_of_its_outcome(suite: TestSuite, report: Report) -> None:
    read = {case.name: [type(result) for result in case.result] for case in suite}
    assert read == {cell: RESULTS[outcome] for cell, outcome in outcomes(report).items()}


def test_results_have_a_message_in_one_line_a_type_and_details(suite: TestSuite, report: Report) -> None:
    cells = {cell.id: cell for cell in report.cells}
    for case in suite:
        for result in case.result:
            assert "\n" not in result.message
            assert result.text
            if not isinstance(result, Skipped):
                assert result.type
                assert f"reproduce: {cells[str(case.name)].reproduce}" in result.text


def test_the_suite_identifies_the_run_and_its_start(suite: TestSuite, report: Report) -> None:
    read = {item.name: item.value for item in suite.properties()}
    commit = {"harness": "0.1.0", "harness_commit": "0123456789ab", "host": "login-1"}
    assert read == {"run_id": report.run_id, "verdict": "fail", **commit}
    assert suite.timestamp == "2026-08-21T10:15:30+00:00"


def test_a_run_without_provenance_is_read_too(broken_report: Report) -> None:
    bare = replace(broken_report, provenance=Provenance(), cells=[], rejected=[])
    (suite,) = JUnitXml.fromstring(render_junit(bare).encode())
    assert (suite.tests, list(suite)) == (0, [])
    assert suite.timestamp is None


def shown_by_gitlab(case: Element) -> tuple[str, str]:
    """Status and details as GitLab's parser (lib/gitlab/ci/parsers/test/junit.rb) takes them from a test case.

    The first of these elements decides; attributes of an element with text are dropped.
    """
    for tag in ("failure", "error", "skipped"):
        found = case.find(tag)
        if found is not None:
            return tag, (found.text or "").strip()
    return "success", ""


def test_gitlab_has_a_unique_name_a_file_and_details_of_every_cell(report: Report) -> None:
    cases = list(ElementTree.fromstring(render_junit(report).encode()).iter("testcase"))
    names = [(case.get("classname"), case.get("name")) for case in cases]
    assert all(classname and name for classname, name in names)
    assert len(set(names)) == len(names)  # GitLab drops the second of two with one name
    lines = {item.id: item.line for item in [*report.cells, *report.rejected]}
    known = outcomes(report)
    for case in cases:
        name = case.get("name", "")
        assert (case.get("file"), case.get("line")) == (
            (report.matrix_file, str(lines[name])) if lines[name] else (None, None)
        )
        assert float(case.get("time", "")) >= 0
        status, details = shown_by_gitlab(case)
        assert (status == "success") == (known[name] is Outcome.PASS)
        assert bool(details) == (status != "success")
    reasons = [shown_by_gitlab(case)[1] for case in cases if case.find("skipped") is not None]
    assert [reason.split(":")[0] for reason in reasons] == [
        "expected failure",
        "rejected by cp.divides",
        "rejected by stack.data_path",
    ]


def test_the_classname_is_the_data_path(suite: TestSuite) -> None:
    def path(case: TestCase) -> str:
        return str(case.classname).removeprefix("smoke.")

    assert all(path(case) in str(case.name) for case in suite)
