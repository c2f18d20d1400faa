from __future__ import annotations

import pytest

from harness.core.text.durations import duration


@pytest.mark.parametrize(
    ("seconds", "text"), [(8.4, "8 s"), (59.6, "1 min 00 s"), (185, "3 min 05 s"), (7620, "2 h 07 min")]
)
def test_durations_read_well(seconds: float, text: str) -> None:
    assert duration(seconds) == text
