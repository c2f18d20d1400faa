from __future__ import annotations

import pytest

from harness.judge.locations import in_short, unequal

LONG = [64 * number for number in range(52)]


@pytest.mark.parametrize(
    ("measured", "expected", "said"),
    [
        (3, 4, "x is 3, expected 4"),
        ([0, 3], [0, 4], "x is [0, 3], expected [0, 4]"),
        (None, [0, 4], "x is None, expected [0, 4]"),
        # Cut to the same beginning, these would read alike.
        (
            [*LONG[:7], *LONG[9:]],
            LONG,
            "x: 50 entries, 52 expected; first difference at index 7: 576, expected 448",
        ),
        (LONG[:50], LONG, "x: 50 entries, 52 expected; first difference at index 50: no entry, expected 3200"),
        ([*LONG, 9], LONG, "x: 53 entries, 52 expected; first difference at index 52: 9, expected no entry"),
        (
            [*LONG[:50], 1, 2],
            LONG,
            "x: 2 of 52 entries differ; first difference at index 50: 1, expected 3200",
        ),
    ],
)
def test_values_that_differ_are_shown_and_long_lists_by_their_difference(
    measured: object, expected: object, said: str
) -> None:
    assert unequal("x", measured, expected) == said


def test_counts_per_expert_are_shown_whole_up_to_eight_experts() -> None:
    assert in_short([1, 3], [2, 2], "control") == "1, 3; control 2, 2"
    assert in_short(None, [2] * 9, "control") == "not recorded; control 2, 2, 2, 2, 2, 2, 2, 2 and 1 more"
    assert in_short([2] * 8 + [1], [2] * 9, "control") == (
        "1 of 9 entries differ; first difference at index 8: 1, expected 2"
    )
