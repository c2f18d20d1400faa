"""matrices/vision.yaml: images in packed rows, their positions along three axes, the features of a vision tower."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from harness.inputs.matrix_file import read_matrix
from harness.launch.stacks.prepare import prepare
from tests.matrices.test_models import named, report_of
from tests.matrices.test_trainer_bridge import reproduced

pytestmark = pytest.mark.train
# A few cells of the newest release; their controls come with them.
COVERING = (
    "tp1-pp1-cp1-bridge_in_batch-mbs2-vision2-deepstack1-bridge062",
    "tp1-pp1-cp2-bridge_in_batch-mbs2-vision2-deepstack1-bridge062",
    "tp2-pp1-cp1-nosp-bridge_in_batch-mbs2-vision2-deepstack1-bridge062",
    "tp1-pp2-cp1-bridge_in_batch-mbs2-vision2-deepstack1-bridge062",
)
RECOMPUTED = "tp1-pp1-cp2-bridge_in_batch-mbs2-vision2-deepstack1-bridge062-recompute-full"
RUNNING_ON = "tp1-pp1-cp1-bridge_in_batch-mbs2-vision2-deepstack1-bridge050"
DEEPSTACK = "tp2-pp1-cp1-bridge_in_batch-mbs2-vision2-deepstack1-bridge062"


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory, root: Path) -> dict[str, Any]:
    only = [option for name in (*COVERING, RUNNING_ON, DEEPSTACK, RECOMPUTED) for option in ("--only", name)]
    return report_of(root, tmp_path_factory.mktemp("vision"), "vision.yaml", *only)


def test_packed_rows_with_images_equal_documents_on_one_rank(report: dict[str, Any]) -> None:
    assert {name: named(report, name)["outcome"] for name in COVERING} == dict.fromkeys(COVERING, "PASS")


def test_the_oracle_judges_cells_with_images_and_their_controls_whole(report: dict[str, Any]) -> None:
    for cell in report["cells"]:
        assert (cell["evidence"]["reference"], cell["evidence"]["not_compared"]) == ("the oracle", ""), cell["id"]


def test_positions_that_run_on_over_documents_are_named_at_the_first_token(report: dict[str, Any]) -> None:
    cell = named(report, RUNNING_ON)
    first = cell["findings"][0]
    assert (cell["outcome"], first["check"], first["where"]["field"]) == ("XFAIL", "tokens_placed", "position_ids")
    assert (first["where"]["document"], first["where"]["token"]) == (1, 0)


@pytest.mark.parametrize(
    ("name", "check", "parameter"),
    [
        (DEEPSTACK, "replica_gradients", "vision_model.decoder.deepstack_merger_list.0.linear_fc2.bias"),
        (RECOMPUTED, "parameter_gradients", "vision_model.patch_embed.proj.weight"),
    ],
)
def test_gradients_that_deepstack_loses_are_named(
    report: dict[str, Any], name: str, check: str, parameter: str
) -> None:
    cell = named(report, name)
    first = cell["findings"][0]
    assert (cell["outcome"], first["check"], first["where"]["parameter"]) == ("XFAIL", check, parameter)


@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("deepstack_under_sp", "rank 1: gradient of the features [0.0, 1.0], expected [1.0, 1.0]"),
        ("deepstack_under_recompute", "hidden states need gradients: True; features of deepstack: False"),
    ],
)
def test_a_reproducer_shows_the_fault(root: Path, name: str, shown: str) -> None:
    stacks = read_matrix(root / "matrices" / "vision.yaml").stacks
    ready = prepare(stacks.values(), lambda text: None)["bridge062"]
    assert shown in reproduced(ready.python, root / "docs" / "reproducers" / f"{name}.py")
