"""Expressions of `-k`, as pytest has them: texts that an id contains, with and, or, not and parentheses."""

from __future__ import annotations

import re
from collections.abc import Callable

from harness.core.errors import InputError, Problem

Fits = Callable[[str], bool]
_TOKEN = re.compile(r"\s*([()]|[^\s()]+)")


def parse(text: str) -> Fits:
    """Whether an id fits the expression, e.g. "tp2 and not (cp2 or sft)"; InputError for one that cannot be read."""
    tokens = _TOKEN.findall(text)
    fits, rest = _either(tokens, text)
    if rest:
        raise _unreadable(text, f"{rest[0]!r} is one word too many")
    return fits


def _either(tokens: list[str], text: str) -> tuple[Fits, list[str]]:
    fits, rest = _both(tokens, text)
    while rest and rest[0] == "or":
        other, rest = _both(rest[1:], text)
        fits = _any_of(fits, other)
    return fits, rest


def _both(tokens: list[str], text: str) -> tuple[Fits, list[str]]:
    fits, rest = _one(tokens, text)
    while rest and rest[0] == "and":
        other, rest = _one(rest[1:], text)
        fits = _all_of(fits, other)
    return fits, rest


def _one(tokens: list[str], text: str) -> tuple[Fits, list[str]]:
    if not tokens or tokens[0] in (")", "and", "or"):
        raise _unreadable(text, f"a text is missing {f'before {tokens[0]!r}' if tokens else 'at the end'}")
    word, *rest = tokens
    if word == "not":
        fits, rest = _one(rest, text)
        return lambda name: not fits(name), rest
    if word == "(":
        fits, rest = _either(rest, text)
        if not rest:
            raise _unreadable(text, "a parenthesis is not closed")
        return fits, rest[1:]
    return lambda name: word in name, rest


def _any_of(one: Fits, other: Fits) -> Fits:
    return lambda name: one(name) or other(name)


def _all_of(one: Fits, other: Fits) -> Fits:
    return lambda name: one(name) and other(name)


def _unreadable(text: str, why: str) -> InputError:
    hint = "e.g. -k 'tp2 and not (cp2 or sft)'"
    return InputError(Problem(key="-k", message=why, found=repr(text), hint=hint))
