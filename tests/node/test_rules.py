from __future__ import annotations

from harness.node.data_paths.rules import CASES
from harness.words.cell import FORBIDDEN


def test_every_case_of_the_axis_has_a_combination() -> None:
    assert tuple(CASES) == FORBIDDEN
