"""Verdicts that are kept between bisections."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from harness.edge import verdict_cache
from harness.edge.verdict_cache import KeptVerdict, VerdictKey
from harness.judge.bisection import JudgedCell
from harness.words.outcomes import Finding, Lane, Outcome

KEY = VerdictKey(code="tree", stack="packages", cell="tp1", where="cpu", harness="1")
FINDING = Finding(lane=Lane.METADATA, check="c", message="m", where={"rank": 3}, measured=float("nan"), bound=[1, None])


@pytest.fixture(autouse=True)
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HARNESS_STACKS", str(tmp_path))
    return tmp_path / "verdicts"


def verdict(key: VerdictKey = KEY) -> KeptVerdict:
    cell = JudgedCell(id="a-1", name="a", outcome=Outcome.FAIL, findings=(FINDING,))
    return KeptVerdict(key=key, cell=cell, run="/somewhere")


def test_a_kept_verdict_comes_back_whole() -> None:
    assert verdict_cache.read(KEY) is None
    verdict_cache.keep(verdict())
    found = verdict_cache.read(KEY)
    assert found is not None
    assert repr(found) == repr(verdict())


@pytest.mark.parametrize("field", ["code", "stack", "cell", "where", "harness"])
def test_it_is_of_use_for_nothing_else(field: str) -> None:
    verdict_cache.keep(verdict())
    assert verdict_cache.read(replace(KEY, **{field: "other"})) is None


@pytest.mark.parametrize("text", ["", "{", "[]", '{"key": 1}'])
def test_half_a_file_is_no_verdict(kept: Path, text: str) -> None:
    verdict_cache.keep(verdict())
    (file,) = kept.glob("*.json")
    file.write_text(text)
    assert verdict_cache.read(KEY) is None


def test_the_version_of_the_harness_tells_its_code() -> None:
    assert verdict_cache.harness_version() == verdict_cache.harness_version()
    assert len(verdict_cache.harness_version().rpartition("-")[2]) == 12
