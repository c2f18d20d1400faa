"""A matrix over attention kernels and devices on a machine without a GPU: cells that need one are ERROR, others run."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch

from tests.cli.conftest import harness, only_run, write_matrix

pytestmark = [
    pytest.mark.train,
    pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU: tests/gpu runs the kernels"),
]
MATRIX = """\
name: kernels
model: {layers: 1, hidden: 32, heads: 4, kv_heads: 2, ffn: 64, vocab: 64}
train: {steps: 1, global_batch: 8, seq_length: 64}
matrix:
  packing: [unpacked, reference]
  attention: [te, varlen, reference, auto]
  dtype: bf16
  device: auto
  include:
    - {packing: reference, attention: reference, dtype: bf16, device: cuda}
checks: {canaries: none}
"""


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("kernels")
    done = harness("run", write_matrix(folder, MATRIX), cwd=folder)
    assert done.returncode == 3, done.stdout + done.stderr  # cells that need a GPU are undecided
    found: dict[str, Any] = json.loads((only_run(folder / "reports") / "report.json").read_text())
    return found


def test_kernels_without_a_gpu_are_errors_with_the_reason_and_the_reference_runs(report: dict[str, Any]) -> None:
    cells = {cell["id"].rpartition("-")[0].removeprefix("tp1-pp1-cp1-"): cell for cell in report["cells"]}
    outcomes = {name: cell["outcome"] for name, cell in cells.items()}
    assert {name for name, outcome in outcomes.items() if outcome == "PASS"} == {
        *(f"{packing}-bf16{kind}" for packing in ("unpacked", "reference") for kind in ("", "-reference")),
    }
    assert report["counts"]["ERROR"] == 6  # a control on CUDA is one of them
    assert sum(report["counts"].values()) == 10
    reasons = {cell["reason"] for cell in report["cells"] if cell["outcome"] == "ERROR"}
    kernel = "attention {} has only CUDA kernels, and ranks compute on the CPU"
    wanted = [*(kernel.format(kind) for kind in ("te", "varlen")), "device is cuda, and this machine has no GPU"]
    assert all(any(text in reason for reason in reasons) for text in wanted)


def test_the_report_says_what_was_asked_what_came_of_it_and_whose_noise_the_bounds_are(report: dict[str, Any]) -> None:
    provenance = report["provenance"]
    assert provenance["attention"] == ["harness reference attention"]
    assert provenance["placed"] == ["cpu with gloo, asked for auto"]
    assert {cell["axes"]["device"] for cell in report["cells"]} >= {"auto"}
    said = {floor["by"] for floors in report["noise"].values() for floor in floors.values()}
    assert said == {"the oracle in the cell's dtype"}
