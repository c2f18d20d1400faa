"""matrices/training.yaml, a part that covers it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.matrices.test_models import named, report_of

pytestmark = pytest.mark.train
CELLS = [
    "tp1-pp2-cp1-sft-cosine-warm1",
    "tp1-pp1-cp1-dp2-sft-wsd-warm0.3-wsdecay2-distopt-on",
    "tp2-pp1-cp1-dp2-sft-warm2-wdlinear-wd0.1-to0.3-distopt-overlap",
    "tp1-pp2-cp1-dp2-sft-meanloss-avgcoll",
]


@pytest.fixture(scope="module")
def training(tmp_path_factory: pytest.TempPathFactory, root: Path) -> dict[str, Any]:
    only = [option for name in CELLS for option in ("--only", name)]
    return report_of(root, tmp_path_factory.mktemp("training"), "training.yaml", *only)


@pytest.mark.parametrize("name", CELLS)
def test_packed_rows_equal_unpacked_ones(training: dict[str, Any], name: str) -> None:
    assert named(training, name)["outcome"] == "PASS"
