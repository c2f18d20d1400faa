"""Later steps of real cells: no clean one fails at any learning rate, and a fault in one is still found."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import harness, only_run, write_matrix

pytestmark = pytest.mark.train
MATRIX = """\
name: rates
model: {layers: 2, hidden: 32, heads: 4, kv_heads: 2, ffn: 64, vocab: 64}
train: {global_batch: 8, seq_length: 64}
matrix:
  packing: reference
  tp: 2
  case:
    - {train.lr: 1.0e-6, train.steps: 3, train.eval_interval: 0}
    - {train.lr: 0.1, train.steps: 3, train.eval_interval: 2}
    - {train.lr: 1.0, train.steps: 10, train.eval_interval: 5}
    - {train.lr: 0.01, train.steps: 30, train.eval_interval: 0}
checks: {canaries: none}
"""


def cells_of(folder: Path, *words: str) -> dict[str, Any]:
    """Learning rate -> the cell of the report, without controls."""
    harness("run", write_matrix(folder, MATRIX), *words, cwd=folder)
    report = json.loads((only_run(folder / "reports") / "report.json").read_text())
    return {str(cell["axes"]["train.lr"]): cell for cell in report["cells"] if cell["role"] == "cell"}


def test_clean_cells_pass_at_any_learning_rate_and_say_what_rounding_decides(tmp_path: Path) -> None:
    cells = cells_of(tmp_path)
    assert {rate: cell["outcome"] for rate, cell in cells.items()} == dict.fromkeys(
        ("1e-06", "0.1", "1.0", "0.01"), "PASS"
    )
    assert cells["1e-06"]["evidence"]["not_compared"] == ""
    assert "from step" in cells["1.0"]["evidence"]["not_compared"]


@pytest.mark.parametrize(
    ("model", "train", "dtype"),
    [
        (
            "{layers: 2, hidden: 32, heads: 4, kv_heads: 2, ffn: 64, vocab: 64, qk_layernorm: true}",
            "4, seed: 7",
            "bf16",
        ),
        ("{moe: {experts: 8, topk: 1}}", "5, seed: 1", "fp32"),
    ],
)
def test_what_has_grown_too_far_is_not_compared_though_two_trainings_are_near_by_chance(
    model: str, train: str, dtype: str, tmp_path: Path
) -> None:
    text = f"name: grown\nmodel: {model}\ntrain: {{lr: 0.1, steps: {train}}}\n"
    text += f"matrix: {{packing: unpacked, dtype: {dtype}}}\nchecks: {{canaries: none}}\n"
    harness("run", write_matrix(tmp_path, text), cwd=tmp_path)
    report = json.loads((only_run(tmp_path / "reports") / "report.json").read_text())
    (cell,) = report["cells"]
    assert (cell["outcome"], cell["lanes"]["numerics"]) == ("PASS", "partial")
    assert "the change of" in cell["evidence"]["not_compared"]


def test_a_fault_of_gradients_is_found_at_any_learning_rate(tmp_path: Path) -> None:
    cells = cells_of(tmp_path, "--fault", "gradients-lost-before-the-update-on-one-tp-rank")
    assert {cell["outcome"] for cell in cells.values()} == {"FAIL"}
