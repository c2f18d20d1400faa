"""Data paths of the harness: validators are called on one rank."""

from __future__ import annotations

import pytest

from harness.core.cell.config import CellConfig
from harness.core.cell.layout import Layout
from harness.core.data_paths.own import NO_TESTS, RULES, Counts, UpstreamTests, counted_tests, upstream_tests_as_written


@pytest.mark.parametrize(
    ("layout", "micro_batch_size", "refused"),
    [
        (Layout(), 1, False),
        (Layout(dp=2), 1, True),
        (Layout(tp=2), 1, True),
        (Layout(), 2, True),
        (Layout(dp=2), 2, True),
    ],
)
def test_validators_are_called_on_one_rank_with_rows_of_one(
    layout: Layout, micro_batch_size: int, refused: bool
) -> None:
    [limit] = RULES.limits
    found = limit.reason(CellConfig(layout=layout, data_path="rules", micro_batch_size=micro_batch_size))
    expected = (
        "packing rules calls validators on one rank, and each case brings its own layout: set the layout and "
        "micro_batch_size to 1"
    )
    assert found == (expected if refused else None)


REPORT = """<?xml version="1.0" encoding="utf-8"?><testsuites><testsuite>
<testcase classname="a.TestB" name="one"/><testcase classname="a" name="two[x]"><failure message="m"/></testcase>
<testcase classname="a" name="three"><skipped/></testcase><testcase classname="a" name="four"><error/></testcase>
<testcase classname="a" name="five"><system-out>text</system-out></testcase>
<testcase classname="a" name="six"><skipped/><error message="in teardown"/></testcase></testsuite></testsuites>"""


def test_tests_are_counted_and_those_that_fail_are_named() -> None:
    counts, failed = counted_tests(REPORT)
    assert counts == Counts(passed=2, failed=3, skipped=1)
    assert failed == ["a::two[x]", "a::four", "a::six"]
    assert str(counts) == "2 passed, 3 failed, 1 skipped"


def test_a_report_without_tests_counts_none() -> None:
    assert counted_tests("<testsuites><testsuite/></testsuites>") == (Counts(passed=0, failed=0, skipped=0), [])


def test_other_text_is_no_report() -> None:
    with pytest.raises(ValueError, match="not JUnit XML"):
        counted_tests("8 passed")


def test_an_entry_is_written_as_it_is_read() -> None:
    tests = UpstreamTests(name="n", file="tests/a.py", select="b", passed=8)
    assert upstream_tests_as_written(tests) == {
        "file": "tests/a.py",
        "select": "b",
        "passed": 8,
        "failed": 0,
        "skipped": 0,
    }
    assert tests.counts == Counts(passed=8, failed=0, skipped=0)
    assert not NO_TESTS.name
