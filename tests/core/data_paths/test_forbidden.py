from __future__ import annotations

import pytest

from harness.core.data_paths.forbidden import ForbiddenCase


@pytest.mark.parametrize(
    ("message", "named"),
    [
        ("pad_cu_seqlens needs pad_to_max_length", True),
        ("ValueError: PAD_CU_SEQLENS is set,\nso set pad_to_max_length too", True),  # other case, two lines
        ("pad_to_max_length and pad_cu_seqlens", False),
        ("another rule", False),
    ],
)
def test_a_message_names_the_rule_if_the_pattern_is_in_it(message: str, named: bool) -> None:
    assert ForbiddenCase(r"pad_cu_seqlens.*pad_to_max_length").named_in(message) is named
