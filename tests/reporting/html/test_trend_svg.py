from __future__ import annotations

import math
import re
import xml.etree.ElementTree as ET

import pytest

from harness.history.page import TrendPoint, trend_svg


def spots(*values: float) -> list[TrendPoint]:
    return [
        TrendPoint(started=f"2026-08-{day:02d}T00:00:00Z", value=value, title=f"<{day}>")
        for day, value in enumerate(values, 1)
    ]


def heights(svg: str) -> list[float]:
    return [float(text) for text in re.findall(r'<circle cx="[\d.]+" cy="([\d.]+)"', svg)]


def test_larger_values_are_drawn_higher_and_every_point_has_a_tooltip() -> None:
    svg = trend_svg(spots(1.0, 3.0, 2.0), alt='a "b"')
    low, high, middle = heights(svg)
    assert high < middle < low
    root = ET.fromstring(svg)
    assert root.attrib["aria-label"] == 'a "b"'
    assert [item.text for item in root.iter("title")] == ["<1>", "<2>", "<3>"]
    assert "2026-08-01" in svg and "2026-08-03" in svg


@pytest.mark.parametrize("values", [(5.0,), (5.0, 5.0), (0.0, 0.0), (1e-9, 2e12), (-3.0, 4.0)])
@pytest.mark.parametrize("log", [False, True])
def test_any_values_stay_inside_the_picture_with_at_least_one_tick(values: tuple[float, ...], log: bool) -> None:
    svg = trend_svg(spots(*values), alt="x", log=log)
    assert all(19.9 <= y <= 146.1 for y in heights(svg))
    assert svg.count('class="grid"') >= 1


def test_zero_has_its_own_line_on_a_log_axis() -> None:
    svg = trend_svg(spots(0.0, 1e-7), alt="x", log=True)
    assert ">0</text>" in svg and ">1e-7</text>" in svg
    zero, other = heights(svg)
    assert zero == 146.0 > other


def test_failed_runs_and_values_that_are_not_finite_are_crosses() -> None:
    failed = [*spots(1.0, 2.0), TrendPoint(started="2026-08-09T00:00:00Z", value=1.5, title="failed", bad=True)]
    svg = trend_svg([*failed, TrendPoint(started="2026-08-10T00:00:00Z", value=math.nan, title="nan")], alt="x")
    assert svg.count('class="bad"') == 2
    assert svg.count("<circle") == 2
    assert "nan" not in re.sub(r"<title>.*?</title>", "", svg)


def test_a_version_is_marked_where_it_begins_and_named_where_there_is_space() -> None:
    close = [
        TrendPoint(
            started=f"2026-08-01T{hour:02d}:00:00Z", value=1.0, title="", mark=f"v{hour}" if hour in (2, 3, 20) else ""
        )
        for hour in range(24)
    ]
    svg = trend_svg(close, alt="x")
    assert svg.count('<path class="mark"') == 3
    assert re.findall(r'<text class="mark"[^>]*>(\w+)<', svg) == ["v2", "v20"]
