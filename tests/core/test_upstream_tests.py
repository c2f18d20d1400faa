from __future__ import annotations

import pytest

from harness.core.upstream_tests import NO_TESTS, Counts, UpstreamTests, as_written, counted

REPORT = """<?xml version="1.0" encoding="utf-8"?><testsuites><testsuite>
<testcase classname="a.TestB" name="one"/><testcase classname="a" name="two[x]"><failure message="m"/></testcase>
<testcase classname="a" name="three"><skipped/></testcase><testcase classname="a" name="four"><error/></testcase>
<testcase classname="a" name="five"><system-out>text</system-out></testcase>
<testcase classname="a" name="six"><skipped/><error message="in teardown"/></testcase></testsuite></testsuites>"""


def test_tests_are_counted_and_those_that_fail_are_named() -> None:
    counts, failed = counted(REPORT)
    assert counts == Counts(passed=2, failed=3, skipped=1)
    assert failed == ["a::two[x]", "a::four", "a::six"]
    assert str(counts) == "2 passed, 3 failed, 1 skipped"


def test_a_report_without_tests_counts_none() -> None:
    assert counted("<testsuites><testsuite/></testsuites>") == (Counts(passed=0, failed=0, skipped=0), [])


def test_other_text_is_no_report() -> None:
    with pytest.raises(ValueError, match="not JUnit XML"):
        counted("8 passed")


def test_an_entry_is_written_as_it_is_read() -> None:
    tests = UpstreamTests(name="n", file="tests/a.py", select="b", passed=8)
    assert as_written(tests) == {"file": "tests/a.py", "select": "b", "passed": 8, "failed": 0, "skipped": 0}
    assert tests.counts == Counts(passed=8, failed=0, skipped=0)
    assert not NO_TESTS.name
