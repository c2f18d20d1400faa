"""A bisection as text for the terminal."""

from __future__ import annotations

from dataclasses import replace

from harness.reporting.bisection import Point, PointState, render_text
from tests.reporting.test_render_issue import bisection


def skipped(number: int) -> Point:
    reason = f"tp1-sft: setup ended with exit code {number}: make\nno compiler here"
    return Point(name=f"{number:040}", state=PointState.SKIPPED, stack="s", cells=(), run="r", reason=reason)


def test_skipped_points_are_listed_with_the_reason_one_per_line() -> None:
    lines = render_text(replace(bisection(), points=(skipped(1), skipped(2)))).splitlines()
    at = lines.index("  2 commits judged, 2 skipped")
    assert lines[at + 1 : at + 3] == [
        f"    skipped {'0' * 12}: tp1-sft: setup ended with exit code 1: make no compiler here",
        f"    skipped {'0' * 12}: tp1-sft: setup ended with exit code 2: make no compiler here",
    ]


def test_of_many_skipped_points_the_first_are_listed_and_the_rest_counted() -> None:
    text = render_text(replace(bisection(), points=tuple(map(skipped, range(1, 9)))))
    assert text.count("    skipped ") == 5
    assert "    and 3 more, see result.json" in text
