"""matrices/multi_turn.yaml: only the answers of a conversation count in the loss, on every data path and trainer."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import harness, only_run

pytestmark = pytest.mark.train
LIMIT_S = 1800  # Transformer Engine is compiled if this machine has no environment with it


def outcomes(folder: Path, matrix: Path, *, code: int = 0) -> dict[str, Any]:
    done = harness("run", matrix, cwd=folder, timeout=LIMIT_S)
    assert done.returncode == code, done.stdout + done.stderr
    report = json.loads((only_run(folder / "reports") / "report.json").read_text())
    assert report["rejected"] == []
    return {cell["id"].rpartition("-")[0]: cell["outcome"] for cell in report["cells"]}


def test_conversations_pass_on_the_paths_that_need_no_stack(tmp_path: Path) -> None:
    matrix = {
        "name": "conversations",
        "train": {"steps": 2},
        "documents": {"mode": "file", "lengths": [5, 30, 1, 90, 21, 12, 40, 17], "turns": 4},  # one is truncated
        "matrix": {"tp": 2, "pp": [1, 2], "cp": 2, "packing": ["unpacked", "reference", "sft"]},
    }
    (tmp_path / "matrix.json").write_text(json.dumps(matrix))
    found = outcomes(tmp_path, tmp_path / "matrix.json")
    assert (len(found), set(found.values())) == (7, {"PASS"})


@pytest.mark.long  # short: the faults of the self-test in masks of conversations, and the test above
def test_every_data_path_and_trainer_masks_the_prompts_of_conversations(tmp_path: Path, root: Path) -> None:
    found = outcomes(tmp_path, root / "matrices" / "multi_turn.yaml")
    for known in ("tp1-pp1-cp2-bridge_offline-bridge050", "tp2-pp1-cp2-bridge_offline-delimited-newest"):
        assert found.pop(known) == "XFAIL"
    assert (len(found), set(found.values())) == (19, {"PASS"})
