"""matrices/attention_variants.yaml, a part that covers it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.matrices.test_models import named, report_of

pytestmark = pytest.mark.train
ALL = "window5-window_skip3-softmax_scale0.5-qk_layernormtrue-softmaxoffbyone"
CELLS = [
    "tp1-pp1-cp2-sft-window8",
    "tp1-pp2-cp1-reference-window8-window_skip2",
    "tp2-pp1-cp1-sft-softmax_scale4.0",
    "tp2-pp1-cp1-nosp-reference-qk_layernormtrue",
    f"tp2-pp2-cp2-reference-{ALL}",
    f"tp2-pp1-cp2-dp2-sft-{ALL}",
    "tp1-pp2-cp1-reference-window8-mla",
]


@pytest.fixture(scope="module")
def variants(tmp_path_factory: pytest.TempPathFactory, root: Path) -> dict[str, Any]:
    only = [option for name in CELLS for option in ("--only", name)]
    return report_of(root, tmp_path_factory.mktemp("variants"), "attention_variants.yaml", *only)


@pytest.mark.parametrize("name", CELLS)
def test_packed_rows_equal_unpacked_ones(variants: dict[str, Any], name: str) -> None:
    assert named(variants, name)["outcome"] == "PASS"
