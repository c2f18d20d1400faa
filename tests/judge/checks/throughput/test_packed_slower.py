"""The documents of a step packed, against one per row on the same ranks in the same rounds."""

from __future__ import annotations

import pytest

from harness.judge.checks.throughput import packed_slower
from tests.judge.timed import timed


@pytest.mark.parametrize("packed", [0.03, 0.1, 0.11])
def test_packed_rows_that_are_faster_or_about_as_fast_pass(packed: float) -> None:
    assert packed_slower(timed({("packed", 0): packed, ("unpacked", 0): 0.1})) == []


def test_a_cell_whose_documents_cannot_be_unpacked_is_not_judged() -> None:
    assert packed_slower(timed({("packed", 0): 0.2})) == []
