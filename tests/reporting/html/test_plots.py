"""The curves as SVG text."""

from __future__ import annotations

import math
import re
import xml.etree.ElementTree as ET

import pytest

from harness.reporting.html.curves import Series, difference_plot, relative_difference, value_plot

CALM = Series(values=[1e-8, 0.0, 2e-8])
BAD = Series(values=[1e-8, 3e-3, 2e-1], kind="failed", label="F1")


def texts(svg: str) -> list[str]:
    return ["".join(node.itertext()) for node in ET.fromstring(svg).iter() if node.tag.endswith("text")]


def heights(svg: str, colour: str) -> list[float]:
    """The y coordinates of the line of a colour."""
    path = next(
        re.findall(r'd="([^"]*)"', tag)[0] for tag in re.findall(r"<path[^>]*>", svg) if f"--plot-{colour}" in tag
    )
    return [float(y) for y in re.findall(r"[ML] \S+ (\S+)", path)]


def test_relative_difference_is_the_distance_over_the_reference() -> None:
    assert relative_difference([2.0, 1.0, 3.0], [1.0, 1.0, 4.0]) == [1.0, 0.0, 0.25]


def test_relative_difference_keeps_what_is_not_finite_and_survives_a_zero_reference() -> None:
    first, second, third = relative_difference([math.nan, math.inf, 0.5], [1.0, 1.0, 0.0])
    assert math.isnan(first) and math.isnan(second) and third == 0.5


def test_the_same_series_give_the_same_text() -> None:
    assert difference_plot("a", [CALM, BAD], bound=1e-5, alt="x") == difference_plot(
        "a", [CALM, BAD], bound=1e-5, alt="x"
    )


def test_a_plot_is_one_well_formed_element_without_style_script_or_date() -> None:
    svg = value_plot("a", [Series(values=[3.0, 2.0], kind="control"), BAD], alt='loss <of> "cells"')
    root = ET.fromstring(svg)
    assert root.get("aria-label") == 'loss <of> "cells"' and root.get("role") == "img"
    for banned in ("<style", "style=", "<script", "<metadata", "<!--", "xlink", "font-family"):
        assert banned not in svg


def test_every_colour_is_a_css_variable_with_a_fallback() -> None:
    svg = difference_plot("a", [CALM, BAD], bound=1e-5, alt="x")
    assert {"failed", "quiet", "grid", "ink", "bound"} <= set(re.findall(r"var\(--plot-(\w+), #", svg))
    assert re.sub(r"var\(--plot-\w+, #[0-9a-f]{6}\)", "", svg).count("#") == svg.count("url(#") + svg.count('href="#')


def test_ids_of_two_plots_on_one_page_do_not_collide() -> None:
    first, second = (set(re.findall(r'\bid="([^"]+)"', value_plot(name, [BAD], alt="x"))) for name in ("a", "b"))
    assert first and second and not first & second


def test_references_inside_a_plot_point_to_its_own_ids() -> None:
    svg = value_plot("a", [BAD], alt="x")
    assert set(re.findall(r'url\(#([^)]+)\)|href="#([^"]+)"', svg)) != set()
    for clip, use in re.findall(r'url\(#([^)]+)\)|href="#([^"]+)"', svg):
        assert f'id="{clip or use}"' in svg


def test_the_failing_line_and_the_bound_are_named() -> None:
    found = texts(difference_plot("a", [CALM, BAD], bound=1.25e-4, alt="x"))
    assert "F1" in found and "bound 0.000125" in found


def test_an_exact_zero_is_drawn_at_the_lowest_tick() -> None:
    svg = difference_plot("a", [Series(values=[1e-3, 0.0, 1e-8], kind="failed")], bound=None, alt="x")
    low, lowest, middle = heights(svg, "failed")
    assert low < middle < lowest  # y grows downwards
    assert "0" in texts(svg)


def test_a_value_that_is_not_finite_is_drawn_above_all_others_and_labelled() -> None:
    svg = difference_plot("a", [Series(values=[1e-3, math.nan, 0.5], kind="failed")], bound=1e-5, alt="x")
    first, lost, last = heights(svg, "failed")
    assert lost < last < first
    assert "NaN" in texts(svg)


def test_lines_that_end_together_share_one_label() -> None:
    same = [Series(values=[1.0, 2.0], kind="failed", label=f"F{index}") for index in range(1, 5)]
    far = Series(values=[1.0, 9.0], kind="known", label="K1")
    assert {"F1 +3", "K1"} <= set(texts(value_plot("a", [*same, far], alt="x")))


def test_thinning_a_long_run_keeps_its_worst_step() -> None:
    values = [1e-8] * 1000
    values[517] = 0.5
    line = Series(values=values, kind="failed")
    drawn = heights(difference_plot("a", [line], bound=None, alt="x", points=20), "failed")
    assert len(drawn) <= 21
    assert min(drawn) < sorted(drawn)[1] - 50


@pytest.mark.parametrize("values", [[], [0.0], [0.0, 0.0], [math.nan], [1e-9]])
def test_short_and_empty_series_are_drawn(values: list[float]) -> None:
    for bound in (None, 1e-5):
        ET.fromstring(difference_plot("a", [Series(values=values, label="F1")], bound=bound, alt="x"))
    ET.fromstring(value_plot("a", [Series(values=values, label="F1")], alt="x"))
