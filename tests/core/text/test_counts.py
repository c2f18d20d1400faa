"""Nouns follow their number."""

from __future__ import annotations

import pytest

from harness.core.text.counts import counted, noun


@pytest.mark.parametrize(("number", "text"), [(0, "0 cells"), (1, "1 cell"), (2, "2 cells")])
def test_a_noun_is_in_the_plural_unless_there_is_one(number: int, text: str) -> None:
    assert counted(number, "cell") == text


def test_an_irregular_plural_is_given() -> None:
    assert [noun(number, "process", "processes") for number in (1, 2)] == ["process", "processes"]
