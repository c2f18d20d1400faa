from __future__ import annotations

from typing import Any

from harness.core.cell.arguments import Arguments, merged
from harness.core.cell.config import CellConfig
from harness.core.cell.layout import Layout
from harness.plan.rules.rule import Own, own_of


def test_the_values_of_a_cell_beside_its_shape() -> None:
    given: dict[str, Any] = {
        "attention": "te",
        "dtype": "bf16",
        "device": "cuda",
        "stack": "nightly",
        "trainer": "megatron",
        "recompute": "full",
        "groups": "explicit",
    }
    config = CellConfig(
        layout=Layout(), data_path="sft", resume="same", args=Arguments(given=merged({"clip-grad": ("0.1",)})), **given
    )
    assert own_of(config) == Own(**given, arguments=True, resumes=True)
    plain = own_of(CellConfig(layout=Layout(), data_path="sft"))
    assert not plain.arguments and not plain.resumes
