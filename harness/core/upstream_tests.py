"""Unit tests of upstream that a cell runs, and what pytest must count. Pure."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from dataclasses import dataclass
from typing import Any

from harness.core.setting import keys_of, setting

_MOST = 1_000_000  # tests of a file


@dataclass(frozen=True, kw_only=True)
class UpstreamTests:
    """One entry of the section `upstream_tests`; a test that pytest could not set up counts as failed."""

    file: str = setting("", doc="File or folder of tests, relative to the checkout.", required=True, min_length=1)
    select: str = setting("", doc="Expression for pytest's `-k`; empty: all tests of the file.")
    passed: int = setting(0, doc="Tests that must pass.", ge=0, le=_MOST, required=True)
    failed: int = setting(0, doc="Tests that must fail.", ge=0, le=_MOST)
    skipped: int = setting(0, doc="Tests that must be skipped.", ge=0, le=_MOST)
    name: str = ""  # in the section

    @property
    def counts(self) -> Counts:
        return Counts(passed=self.passed, failed=self.failed, skipped=self.skipped)


@dataclass(frozen=True, kw_only=True)
class Counts:
    """What pytest counted; tests that are expected to fail count as skipped, as in JUnit XML."""

    passed: int
    failed: int
    skipped: int

    @property
    def total(self) -> int:
        return self.passed + self.failed + self.skipped

    def __str__(self) -> str:
        return f"{self.passed} passed, {self.failed} failed, {self.skipped} skipped"


NO_TESTS = UpstreamTests()


def as_written(tests: UpstreamTests) -> dict[str, Any]:
    """The entry of a matrix file."""
    return {name: getattr(tests, name) for name in keys_of(UpstreamTests)}


def counted(junit: str) -> tuple[Counts, list[str]]:
    """The counts in a JUnit XML file of pytest, and the names of the tests that failed. ValueError for other text."""
    try:
        cases = list(ElementTree.fromstring(junit).iter("testcase"))
    except ElementTree.ParseError as error:
        raise ValueError(f"not JUnit XML: {error}") from error
    failed = [case for case in cases if case.find("failure") is not None or case.find("error") is not None]
    skipped = sum(case.find("skipped") is not None for case in cases if case not in failed)
    names = [f"{case.get('classname', '')}::{case.get('name', '')}" for case in failed]
    passed = len(cases) - len(failed) - skipped
    return Counts(passed=passed, failed=len(failed), skipped=skipped), names
