"""junit.xml: one testcase per cell, rejected ones included.

<failure> FAIL, <error> ERROR, <skipped> REJECTED and XFAIL; PASS, XPASS and FLAKY pass, the last two with a note.
Schema: the one that CI systems share (Jenkins, GitLab and GitHub Actions read testsuites/testsuite/testcase).
"""

from __future__ import annotations

from xml.etree import ElementTree
from xml.etree.ElementTree import Element, SubElement

from harness.core.outcomes import Finding, Outcome
from harness.core.run.report import Report, ReportCell, ReportRejected
from harness.core.text import one_line, visible

_MESSAGE_LENGTH = 500


def render_junit(report: Report) -> str:
    """Return the text of junit.xml."""
    suites = Element("testsuites")
    suite = SubElement(suites, "testsuite", name=visible(report.matrix))
    _describe(suite, report)
    for problem in report.problems:
        case = SubElement(suite, "testcase", classname=visible(report.matrix), name="run", time="0.000")
        SubElement(case, "error", message=_message(problem), type="undecided").text = visible(problem)
    for cell in report.cells:
        _cell(suite, report, cell)
    for rejected in report.rejected:
        _rejected(suite, report, rejected)
    counts = {
        "tests": len(suite.findall("testcase")),
        "failures": len(suite.findall("testcase/failure")),
        "errors": len(suite.findall("testcase/error")),
        "skipped": len(suite.findall("testcase/skipped")),
    }
    for element in (suites, suite):
        for name, count in counts.items():
            element.set(name, str(count))
        element.set("time", f"{report.timing.get('wall_s', 0.0):.3f}")
    ElementTree.indent(suites)
    return '<?xml version="1.0" encoding="utf-8"?>\n' + ElementTree.tostring(suites, encoding="unicode") + "\n"


def _describe(suite: Element, report: Report) -> None:
    """Add start time and identity of the run, which CI systems keep with the counts."""
    known = report.provenance
    if known.started:
        suite.set("timestamp", visible(known.started))
    facts = {"run_id": report.run_id, "verdict": report.verdict}
    facts |= {"harness": known.harness, "harness_commit": known.harness_commit, "host": known.host}
    facts |= {"faults": ", ".join(report.faults)} if report.faults else {}
    properties = SubElement(suite, "properties")
    for name, value in facts.items():
        SubElement(properties, "property", name=name, value=visible(value))


def _testcase(suite: Element, report: Report, cell: ReportCell | ReportRejected, time_s: float) -> Element:
    classname = f"{report.matrix}.{cell.axes.get('packing', 'cell')}"
    case = SubElement(suite, "testcase", classname=visible(classname), name=visible(cell.id), time=f"{time_s:.3f}")
    if cell.line is not None:
        case.set("file", visible(report.matrix_file))
        case.set("line", str(cell.line))
    return case


def _cell(suite: Element, report: Report, cell: ReportCell) -> None:
    case = _testcase(suite, report, cell, cell.timing.get("wall_s", 0.0))
    if cell.outcome in (Outcome.FAIL, Outcome.ERROR):
        tag = "failure" if cell.outcome is Outcome.FAIL else "error"
        lead = cell.first if cell.outcome is Outcome.FAIL else None
        problem = SubElement(case, tag, message=_message(lead.message if lead else cell.reason))
        problem.set("type", visible((lead.fault_class if lead else "infrastructure") or "unclassified"))
        problem.text = visible(details(cell))
    elif cell.outcome is Outcome.NOT_RUN:
        _skipped(case, f"not run: {cell.reason}")
    elif cell.outcome is Outcome.XFAIL:
        _skipped(case, f"expected failure: {cell.reason}")
    elif cell.outcome is not Outcome.PASS or cell.partial:
        note = "; ".join(filter(None, [cell.reason, cell.partial]))
        SubElement(case, "system-out").text = visible(f"{cell.outcome.value}: {note}")


def _rejected(suite: Element, report: Report, rejected: ReportRejected) -> None:
    case = _testcase(suite, report, rejected, 0.0)
    _skipped(case, f"rejected by {rejected.rule}: {rejected.reason}")


def _skipped(case: Element, reason: str) -> None:
    """Add <skipped> with the reason as message, which Jenkins shows, and as text, which GitLab shows."""
    SubElement(case, "skipped", message=_message(reason)).text = visible(reason)


def _message(text: str) -> str:
    """Return the text in one line, cut to the length of an attribute."""
    return one_line(text, _MESSAGE_LENGTH)


def details(cell: ReportCell) -> str:
    """Return why a cell did not pass: findings, reason, failure with its traceback, and the command to reproduce."""
    lines = [_finding(finding) for finding in cell.findings]
    lines += [f"reason: {cell.reason}"] if cell.reason else []
    lines += [cell.scope] if cell.scope else []
    if cell.failure is not None:
        if cell.failure.failure_class:
            follows = cell.failure.follows_from
            more = f"A consequence of {follows}." if follows else cell.failure.advice
            lines += [f"failure: {cell.failure.title} ({cell.failure.domain}). {more}"]
        lines += [f"log: {cell.failure.log}", cell.failure.traceback]
    return "\n".join([*lines, f"reproduce: {cell.reproduce}"])


def _finding(finding: Finding) -> str:
    head = f"{finding.severity.value} {finding.lane.value}/{finding.check}: {finding.message}"
    return f"{head} [{finding.fault_class or 'unclassified'}]"
