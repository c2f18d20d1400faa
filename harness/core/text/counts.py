"""Counts with nouns in singular or plural."""

from __future__ import annotations


def counted(number: int, one: str, many: str | None = None) -> str:
    """The number with its noun, e.g. "1 cell", "3 cells", "2 rank processes"."""
    return f"{number} {noun(number, one, many)}"


def noun(number: int, one: str, many: str | None = None) -> str:
    """The noun alone, in the form that the number needs."""
    return one if number == 1 else many or f"{one}s"
