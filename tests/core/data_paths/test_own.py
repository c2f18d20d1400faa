"""Data paths of the harness: validators are called on one rank."""

from __future__ import annotations

import pytest

from harness.core.cell.config import CellConfig
from harness.core.cell.layout import Layout
from harness.core.data_paths.own import RULES


@pytest.mark.parametrize(
    ("layout", "micro_batch_size", "refused"),
    [
        (Layout(), 1, False),
        (Layout(dp=2), 1, True),
        (Layout(tp=2), 1, True),
        (Layout(), 2, True),
        (Layout(dp=2), 2, True),
    ],
)
def test_validators_are_called_on_one_rank_with_rows_of_one(
    layout: Layout, micro_batch_size: int, refused: bool
) -> None:
    [limit] = RULES.limits
    found = limit.reason(CellConfig(layout=layout, data_path="rules", micro_batch_size=micro_batch_size))
    expected = (
        "packing rules calls validators on one rank, and each case brings its own layout: set the layout and "
        "micro_batch_size to 1"
    )
    assert found == (expected if refused else None)
