"""docs/guides.md: every rule, check, fault, contract and matrix that it names exists."""

from __future__ import annotations

import re
from collections.abc import Collection
from pathlib import Path

import pytest

from harness.contracts.combinations import COMBINATIONS
from harness.faults.catalogue import FAULTS
from harness.judge.checks.table import CHECKS
from harness.matrix.rules.table import RULES
from harness.upstreams.table import DATA_PATHS

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "guides.md").read_text(encoding="utf-8")
KINDS: dict[str, Collection[str]] = {
    r"rules? ": [rule.id for rule in RULES],
    r"checks? ": [check.name for check in CHECKS],
    r"faults? ": [fault.name for fault in FAULTS],
    r"data paths? ": DATA_PATHS,
    r"contracts? ": COMBINATIONS,
    r"": [file.name for file in (ROOT / "matrices").glob("*.yaml")],
}
_LIST = r"`?([\w.-]+)`((?:(?:, | and )`[\w.-]+`)*)"


def named(kind: str, page: str) -> list[str]:
    """What a page names after the word of a kind: one thing, or a list."""
    if not kind:
        return re.findall(r"`(\w+\.yaml)`", page)
    lists = re.findall(f"(?<![\\w.]){kind}{_LIST}", page)
    return [name for first, rest in lists for name in [first, *re.findall(r"`([\w.-]+)`", rest)]]


@pytest.mark.parametrize("kind", KINDS)
def test_what_the_page_names_exists(kind: str) -> None:
    found = named(kind, PAGE)
    assert len(found) >= 4
    assert sorted(set(found) - set(KINDS[kind])) == []


def test_a_name_that_does_not_exist_is_found() -> None:
    page = "| x | rules `a.b`, `c.d`; fault `e-f`; contracts `g`, `h`; `i.yaml` |"
    assert [named(kind, page) for kind in (r"rules? ", r"faults? ", r"contracts? ", "")] == [
        ["a.b", "c.d"],
        ["e-f"],
        ["g", "h"],
        ["i.yaml"],
    ]
