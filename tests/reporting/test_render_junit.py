from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from xml.etree import ElementTree

from harness.core.outcomes import Outcome
from harness.core.run.report import Report
from harness.reporting.render_junit import render_junit

HOSTILE = "\x00\x1b[31m <b> & ]]> \ud800 \ufffe \U0001f600 \"'\n\ttail"


def test_the_whole_file(broken_report: Report, golden: Callable[[str, str], None]) -> None:
    golden("junit.xml", render_junit(broken_report))


def test_every_cell_is_one_testcase_of_the_right_kind(broken_report: Report) -> None:
    suite = ElementTree.fromstring(render_junit(broken_report).encode())[0]
    kinds = {case.get("name"): [child.tag for child in case] for case in suite.iter("testcase")}
    for cell in broken_report.cells:
        expected = {Outcome.PASS: [], Outcome.FAIL: ["failure"], Outcome.ERROR: ["error"], Outcome.XFAIL: ["skipped"]}
        assert kinds[cell.id] == expected[cell.outcome]
    assert all(kinds[cell.id] == ["skipped"] for cell in broken_report.rejected)
    counts = {name: suite.get(name) for name in ("tests", "failures", "errors", "skipped")}
    assert counts == {"tests": "9", "failures": "3", "errors": "1", "skipped": "3"}


def test_passes_with_a_note(broken_report: Report) -> None:
    for outcome in (Outcome.XPASS, Outcome.FLAKY):
        cell = replace(broken_report.cells[0], outcome=outcome, reason="why")
        suite = ElementTree.fromstring(render_junit(replace(broken_report, cells=[cell])).encode())[0]
        case = suite.find("testcase")
        assert case is not None
        assert [(child.tag, child.text) for child in case] == [("system-out", f"{outcome.value}: why")]


def test_hostile_text_stays_well_formed(broken_report: Report) -> None:
    cells = [
        replace(
            cell,
            id=cell.id + HOSTILE,
            reason=HOSTILE,
            findings=[replace(finding, message=HOSTILE, fault_class=HOSTILE) for finding in cell.findings],
            failure=replace(cell.failure, traceback=HOSTILE) if cell.failure else None,
        )
        for cell in broken_report.cells
    ]
    rejected = [replace(item, reason=HOSTILE) for item in broken_report.rejected]
    text = render_junit(replace(broken_report, matrix=HOSTILE, cells=cells, rejected=rejected))
    root = ElementTree.fromstring(text.encode())
    [failure, *_] = root.findall("testsuite/testcase/failure")
    assert failure.get("message") == "\\x00\\x1b[31m <b> & ]]> \\ud800 \\ufffe \U0001f600 \"' tail"
    assert len(root.findall("testsuite/testcase")) == 9
