"""The arithmetic of figures; what benchmarks measure is not tested."""

from __future__ import annotations

import math
from pathlib import Path
from types import ModuleType

import pytest

from tests.scripts import load_script

FILE = Path(__file__).resolve().parents[2] / "benchmarks" / "figures.py"


@pytest.fixture(scope="module")
def figures() -> ModuleType:
    return load_script(FILE)


def test_the_median_is_held_to_the_limit(figures: ModuleType) -> None:
    figure = figures.Figure(name="submission", values=[9.0, 1.0, 2.0], limit=2.0)
    assert figure.ok
    assert figure.line() == "submission: 2 s (median of 3, 1 to 9); limit 2: ok"


def test_the_largest_value_is_held_to_the_limit_where_each_counts(figures: ModuleType) -> None:
    figure = figures.Figure(name="crash", values=[1.0, 6.0, 2.0], limit=5.0, worst=True)
    assert not figure.ok
    assert figure.line() == "crash: 6 s (largest of 3, 1 to 6); limit 5: MISSED"


def test_large_numbers_are_shown_whole(figures: ModuleType) -> None:
    values = [1020.0, 167_890.0, 999.4, 0.0123456, math.inf]
    assert [figures.shown(value) for value in values] == ["1020", "167890", "999", "0.0123", "inf"]


def test_what_never_came_misses_its_limit(figures: ModuleType) -> None:
    assert not figures.Figure(name="again", values=[math.inf], limit=60.0, worst=True).ok


def test_one_missed_limit_decides_the_exit_code(figures: ModuleType) -> None:
    shown = figures.Figure(name="wall", values=[99.0])
    missed = figures.Figure(name="ratio", values=[0.3], unit="", limit=0.2)
    assert figures.exit_code([shown]) == 0
    assert figures.exit_code([shown, missed]) == 1
