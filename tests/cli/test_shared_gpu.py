"""Cells whose ranks share a GPU, simulated on a CPU, where gloo refuses what it refuses of CUDA tensors."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import harness, only_run

MATRIX = """\
name: shared
model: {layers: 2, hidden: 32, heads: 4, kv_heads: 2, ffn: 64, vocab: 64}
train: {steps: 2, global_batch: 8, seq_length: 64}
checks: {canaries: none}
matrix:
  device: cuda
  rows:
    - {tp: 2, pp: 1, cp: 1, packing: reference}
    - {tp: 1, pp: 2, cp: 1, packing: reference}
    - {tp: 1, pp: 2, cp: 2, packing: sft}
"""


def on_a_shared_gpu(folder: Path, *arguments: str, **variables: str) -> Any:
    """The report of the matrix, run by agents that load tests/cli/simulated_gpu.py as a plug-in."""
    metadata = folder / "simulated_gpu-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: simulated-gpu\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text(
        "[packing_harness.models]\nshared-gpu = tests.cli.simulated_gpu:activate\n"
    )
    (folder / "shared.yaml").write_text(MATRIX)
    done = harness("run", "shared.yaml", *arguments, cwd=folder, env={"PYTHONPATH": str(folder), **variables})
    assert done.returncode in (0, 1, 3), done.stdout + done.stderr
    return json.loads((only_run(folder / "reports") / "report.json").read_text())


@pytest.mark.train
def test_all_kinds_of_parallelism_pass_by_the_stubs_of_gloo(tmp_path: Path) -> None:
    report = on_a_shared_gpu(tmp_path)
    outcomes = {cell["id"]: (cell["outcome"], cell["reason"]) for cell in report["cells"]}
    assert {outcome for outcome, _ in outcomes.values()} == {"PASS"}, outcomes
    assert len(outcomes) == 4  # with the control
    assert report["provenance"]["placed"] == ["cuda with gloo, 2 ranks on one GPU, asked for cuda"]
    assert report["provenance"]["cpu_stubs"] == []
    for name in ("allreduce_coalesced", "send", "recv"):
        assert f"torch.distributed.ProcessGroup.{name}" in report["provenance"]["gloo_stubs"]


@pytest.mark.train
@pytest.mark.parametrize(("lack", "cell"), [("allreduce_coalesced", "tp2"), ("send", "pp2 and cp1")])
def test_what_gloo_refuses_and_nothing_stands_in_for_is_no_failure_of_the_code(
    lack: str, cell: str, tmp_path: Path
) -> None:
    report = on_a_shared_gpu(tmp_path, "-k", cell, SIMULATED_LACK=lack)
    assert report["verdict"] == "error"
    (failed,) = [one for one in report["cells"] if "unpacked" not in one["id"]]
    assert failed["outcome"] == "ERROR"
    assert "gloo cannot take a tensor on a GPU, please report it with the log of rank" in failed["reason"]
