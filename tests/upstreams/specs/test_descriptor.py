"""The limit that forbids padding options: it names the option that is set."""

from __future__ import annotations

import pytest

from harness.core.cell.config import CellConfig
from harness.core.cell.layout import Layout
from harness.core.packing.options import PackingOptions
from harness.upstreams.descriptor import padding_is_fixed


@pytest.mark.parametrize(
    ("multiple", "fixed", "expected"),
    [
        (None, False, None),
        (8, False, "pad_seq_to_mult is set, and rows end with their tokens"),
        (None, True, "pad_to_max_length is set, and rows end with their tokens"),
        (8, True, "pad_to_max_length is set, and rows end with their tokens"),
    ],
)
def test_the_reason_names_the_padding_option_that_is_set(
    multiple: int | None, fixed: bool, expected: str | None
) -> None:
    options = PackingOptions(pad_seq_to_mult=multiple, pad_to_max_length=fixed)
    config = CellConfig(layout=Layout(), data_path="skyrl", options=options)
    assert padding_is_fixed("rows end with their tokens")(config) == expected
