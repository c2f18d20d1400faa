"""Which layers have experts, as a matrix and upstream's users write it."""

from __future__ import annotations

from typing import Any

import pytest

from harness.features.experts.config import MoeConfig
from harness.features.experts.layers import frequency, with_experts


@pytest.mark.parametrize(
    ("written", "text"),
    [
        (2, "2"),
        ("1", "1"),
        ([0, 1], "[0,1]"),
        ("([0]*2+[1]*3)", "[0,0,1,1,1]"),
        ("2*[0,1]", "[0,1,0,1]"),
        ("([0]+[1])*2", "[0,1,0,1]"),
    ],
)
def test_a_number_or_a_list_in_the_form_of_upstream_is_read(written: Any, text: str) -> None:
    assert frequency(written) == text


@pytest.mark.parametrize(
    ("written", "message"),
    [
        (0, "from 1 to"),
        ("[0,2]", "1 for a layer with experts"),
        ("[]", "1 for a layer with experts"),
        ("all", "write N for every"),
        ("[0]*", "write N for every"),
        ("[0]*9999999", "write N for every"),
        ("[0] + 1", "write N for every"),
    ],
)
def test_anything_else_is_refused_with_the_form(written: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        frequency(written)


def test_every_nth_layer_has_experts_from_the_first() -> None:
    assert with_experts("2", 5) == [True, False, True, False, True]


def test_names_say_which_layers_are_dense() -> None:
    assert [str(MoeConfig(layer_freq=text)) for text in ("1", "3", "[0,1,1]")] == [
        "moe4x2",
        "moe4x2-freq3",
        "moe4x2-layers011",
    ]
