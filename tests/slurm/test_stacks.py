"""Stacks on the real cluster: agents start in the stack's interpreter, with its search path and variables."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest

from harness.core.outcomes import Outcome
from tests.slurm.cluster import Cluster
from tests.slurm.lab import SlurmLab

pytestmark = [pytest.mark.slurm, pytest.mark.train]
MATRIX = """\
name: stacks
model: {layers: 2, hidden: 32, heads: 4, kv_heads: 2, ffn: 64, vocab: 64}
train: {steps: 1, global_batch: 4, seq_length: 32}
matrix:
  packing: unpacked
  stack: [clean, polluted]
stacks:
  clean: {python: PYTHON, env: {OMP_NUM_THREADS: "1"}}
  polluted: {python: PYTHON, env: {PYTHONPATH: POLLUTION}}
"""


def test_a_stack_runs_its_own_code_and_other_code_is_detected(
    lab: SlurmLab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = importlib.util.find_spec("megatron")
    assert spec is not None
    assert spec.submodule_search_locations is not None
    (tmp_path / "pollution").mkdir()
    (tmp_path / "pollution" / "megatron").symlink_to(next(iter(spec.submodule_search_locations)))
    text = MATRIX.replace("PYTHON}", f"{sys.executable}}}").replace("PYTHON,", f"{sys.executable},")
    cluster = Cluster(lab, tmp_path, text.replace("POLLUTION", str(tmp_path / "pollution")))
    # By Slurm's default the launcher's PYTHONPATH reaches jobs; it must not reach a stack.
    monkeypatch.setenv("PYTHONPATH", ":".join([*sys.path[:1], str(tmp_path / "pollution")]))
    code, output = cluster.run("run", str(cluster.matrix), "--cluster", "slurm-lab")
    assert code == 3, output
    cells = {cell.axes["stack"]: cell for cell in cluster.report().cells}
    assert cells["clean"].outcome is Outcome.PASS, cells["clean"].reason
    assert cells["polluted"].outcome is Outcome.ERROR
    assert f"came from {tmp_path}/pollution/megatron/core/__init__.py" in cells["polluted"].reason
    assert "megatron-core" in cluster.report().provenance.stacks["clean"].versions
