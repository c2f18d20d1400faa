"""The documents of a step packed, against one per row on the same ranks in the same rounds."""

from __future__ import annotations

import pytest

from harness.core.outcomes import Lane
from harness.judge.checks.throughput import packed_slower
from tests.judge.simulator import the_only_finding
from tests.judge.timed import timed


def test_packed_rows_that_take_twice_as_long_are_slower() -> None:
    evidence = timed({("packed", 0): 0.2, ("unpacked", 0): 0.1})
    finding = the_only_finding(evidence, "packed_slower")
    assert (finding.lane, finding.where) == (Lane.THROUGHPUT, {"leg": "timing"})
    assert finding.measured == pytest.approx(2, rel=0.2)
    tokens = sum(document.length for document in evidence.cell.config.documents_of(0))
    assert f"packed, the {tokens} real tokens of a step take" in finding.message


@pytest.mark.parametrize("packed", [0.03, 0.1, 0.11])
def test_packed_rows_that_are_faster_or_about_as_fast_pass(packed: float) -> None:
    assert packed_slower(timed({("packed", 0): packed, ("unpacked", 0): 0.1})) == []


def test_a_cell_whose_documents_cannot_be_unpacked_is_not_judged() -> None:
    assert packed_slower(timed({("packed", 0): 0.2})) == []
