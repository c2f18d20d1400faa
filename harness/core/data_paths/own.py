"""Data paths of the harness itself: two for controls, one that calls upstream's validators, one that runs its tests."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from dataclasses import dataclass
from typing import Any

from harness.core.cell.layout import Layout
from harness.core.data_paths.descriptor import (
    FORBIDDEN_CASES,
    LAYOUT,
    NONE,
    DataPath,
    Limit,
    LimitedCell,
    one_document_per_row,
)
from harness.core.packing.options import PackingOptions, PackingStyle
from harness.core.setting import keys_of, setting

_MOST_TESTS = 1_000_000  # tests of a file


@dataclass(frozen=True, kw_only=True)
class UpstreamTests:
    """One entry of the section `upstream_tests`; a test that pytest could not set up counts as failed."""

    file: str = setting("", doc="File or folder of tests, relative to the checkout.", required=True, min_length=1)
    select: str = setting("", doc="Expression for pytest's `-k`; empty: all tests of the file.")
    passed: int = setting(0, doc="Tests that must pass.", ge=0, le=_MOST_TESTS, required=True)
    failed: int = setting(0, doc="Tests that must fail.", ge=0, le=_MOST_TESTS)
    skipped: int = setting(0, doc="Tests that must be skipped.", ge=0, le=_MOST_TESTS)
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


def upstream_tests_as_written(tests: UpstreamTests) -> dict[str, Any]:
    """The entry of a matrix file."""
    return {name: getattr(tests, name) for name in keys_of(UpstreamTests)}


def counted_tests(junit: str) -> tuple[Counts, list[str]]:
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


def _reference_style(layout: Layout, seq_length: int, options: PackingOptions) -> PackingStyle:
    return PackingStyle(
        packed=True,
        document_multiple=options.pad_seq_to_mult or LAYOUT.multiple(layout),
        row_length=seq_length if options.pad_to_max_length else None,
        real_lengths=True,
    )


def _one_rank(cell: LimitedCell) -> str | None:
    if cell.layout.world_size == 1 and cell.micro_batch_size == 1:
        return None
    return (
        "packing rules calls validators on one rank, and each case brings its own layout: set the layout and "
        "micro_batch_size to 1"
    )


def _one_rank_tests(cell: LimitedCell) -> str | None:
    if cell.layout.world_size == 1 and cell.micro_batch_size == 1:
        return None
    return "packing upstream_tests starts pytest on one rank: set the layout and micro_batch_size to 1"


UNPACKED = DataPath(
    name="unpacked",
    code="one document per row, by the harness",
    functions="none: one document per row, a control",
    releases="any megatron-core from 0.14",
    style=one_document_per_row,
    packs=False,
    own=True,
    alignment=NONE,
    trainers=("megatron",),
    hands_padding_mask=True,
    tokens_on_last_stage=True,
    predicts_on_any_stage=True,
)
REFERENCE = DataPath(
    name="reference",
    code="packed by the harness; model and schedule by Megatron",
    functions="none: the harness's own packer, broadcast and context split, a control",
    releases="any megatron-core from 0.14",
    style=_reference_style,
    own=True,
    alignment=LAYOUT,
    options=("pad_seq_to_mult", "pad_to_max_length"),
    counts_work=True,
    hands_padding_mask=True,
    tokens_on_last_stage=True,
    predicts_on_any_stage=True,
    sets_pad_between_seqs=True,
)
RULES = DataPath(
    name="rules",
    code="validation of arguments",
    functions="Megatron-Bridge `ConfigContainer.validate`, Megatron-LM `validate_args`",
    releases="megatron-bridge wheels 0.4 to 0.6; `validate_args` megatron-core wheels from 0.17",
    style=one_document_per_row,
    packs=False,
    alignment=NONE,
    limits=(Limit("rules.one-rank", "harness: validators are called on one rank", _one_rank),),
    validates=tuple(FORBIDDEN_CASES),
)
UPSTREAM_TESTS = DataPath(
    name="upstream_tests",
    code="its own unit tests",
    functions="upstream's own unit tests, run by pytest",
    releases="checkouts with the tests, and pytest in the stack",
    style=one_document_per_row,
    packs=False,
    alignment=NONE,
    limits=(Limit("upstream-tests.one-rank", "harness: pytest is started on one rank", _one_rank_tests),),
)
