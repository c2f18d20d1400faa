"""Verdicts that are cached between bisections."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

import harness
from harness.core.outcomes import Finding, Lane, Outcome
from harness.reporting.bisection import JudgedCell
from harness.triage.bisect import rounds
from harness.triage.bisect.rounds import KeptVerdict, VerdictKey

KEY = VerdictKey(code="tree", stack="packages", cell="tp1", where="cpu", harness="1")
FINDING = Finding(lane=Lane.METADATA, check="c", message="m", where={"rank": 3}, measured=float("nan"), bound=[1, None])


@pytest.fixture(autouse=True)
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HARNESS_STACKS", str(tmp_path))
    return tmp_path / "verdicts"


def verdict(key: VerdictKey = KEY) -> KeptVerdict:
    cell = JudgedCell(id="a-1", name="a", outcome=Outcome.FAIL, findings=(FINDING,))
    return KeptVerdict(key=key, cell=cell, run="/somewhere")


def test_a_cached_verdict_round_trips() -> None:
    assert rounds.read_verdict(KEY) is None
    rounds.keep_verdict(verdict())
    found = rounds.read_verdict(KEY)
    assert found is not None
    assert repr(found) == repr(verdict())


@pytest.mark.parametrize("field", ["code", "stack", "cell", "where", "harness"])
def test_a_cached_verdict_is_used_for_no_other_key(field: str) -> None:
    rounds.keep_verdict(verdict())
    assert rounds.read_verdict(replace(KEY, **{field: "other"})) is None


@pytest.mark.parametrize("text", ["", "{", "[]", '{"key": 1}'])
def test_a_damaged_file_is_no_verdict(kept: Path, text: str) -> None:
    rounds.keep_verdict(verdict())
    (file,) = kept.glob("*.json")
    file.write_text(text)
    assert rounds.read_verdict(KEY) is None


def test_the_digest_changes_with_text_and_names_of_the_code_and_with_nothing_else(tmp_path: Path) -> None:
    code, other = tmp_path / "checks" / "a.py", tmp_path / "checks" / "b.py"
    code.parent.mkdir()
    seen = [rounds.code_digest(tmp_path)]
    for change in (
        lambda: code.write_text("BOUND = 1\n"),
        lambda: code.write_text("BOUND = 2\n"),
        lambda: code.rename(other),
        lambda: other.with_name("c.py").write_text(""),
    ):
        change()
        seen.append(rounds.code_digest(tmp_path))
        code.with_suffix(".pyc").write_text(f"{len(seen)}")
        assert rounds.code_digest(tmp_path) == seen[-1]
    assert len(set(seen)) == len(seen)


def test_the_version_of_the_harness_has_its_release_and_a_digest_of_its_code() -> None:
    release, _, digest = rounds.harness_version().rpartition("-")
    root = Path(harness.__file__).parent
    assert (release, digest) == (harness.__version__, rounds.code_digest(root))
    assert root.joinpath("judge", "checks", "table.py").is_file()
