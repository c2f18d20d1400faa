from __future__ import annotations

import math

import pytest

from harness.infra.html.filters import place_words, reach_words, value_text


def test_a_location_is_written_outermost_first_and_unknown_keys_are_kept() -> None:
    where = {"token": 17, "document": 4, "stage": 1, "micro_batch": 0, "new_key": [1], "layer": None, "ranks": [1, 2]}
    assert place_words(where) == ["stage 1", "micro-batch 0", "document 4", "token 17", "new key [1]"]


def test_reach_is_written_only_when_there_is_more_than_one_place() -> None:
    assert reach_words({"places": 1, "ranks": [3]}) == ""
    assert reach_words({"places": 12, "ranks": [2, 3], "stages": [1]}) == "12 places; ranks 2, 3; stages 1"


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "none"),
        (math.nan, "NaN"),
        (-math.inf, "-infinity"),
        (1e-5, "1e-05"),
        (64, "64"),
        ([0, 1, math.inf], '[0, 1, {"$float": "inf"}]'),
        ({"value": 0.1, "unit": "relative", "origin": "matrix"}, "0.1 relative"),
        ("1e-05 relative (default)", "1e-05 relative (default)"),
    ],
)
def test_values_are_written_short(value: object, text: str) -> None:
    assert value_text(value) == text
