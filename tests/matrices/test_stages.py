"""matrices/stages.yaml: stages of unequal size, and ranks in another order, train as the oracle does."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.matrices.test_models import named, report_of

pytestmark = pytest.mark.train
# Fewer layers at one end, embedding and loss that count, prediction layers apart, another order of ranks.
COVERING = (
    "tp1-pp2-cp1-first3-sft",
    "tp1-pp2-cp1-vpp2-embedding-as-layer-loss-as-layer-reference-layers2",
    "tp1-pp4-cp1-stages-2-2-0m-0-sft-mtp1",
    "tp1-pp2-cp2-dp2-ep2-pp-before-dp-reference-moe4x2-aux_loss",
)


def test_stages_of_unequal_size_pass(tmp_path: Path, root: Path) -> None:
    only = [option for name in COVERING for option in ("--only", name)]
    report = report_of(root, tmp_path, "stages.yaml", *only)
    assert {name: named(report, name)["outcome"] for name in COVERING} == dict.fromkeys(COVERING, "PASS")


@pytest.mark.long  # short: the test above
def test_the_shipped_matrix_passes(tmp_path: Path, root: Path) -> None:
    outcomes = {cell["id"]: cell["outcome"] for cell in report_of(root, tmp_path, "stages.yaml")["cells"]}
    assert len(outcomes) == 21
    assert set(outcomes.values()) == {"PASS"}
