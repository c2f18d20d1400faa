"""Every field of every file of real runs of 4 and of 8 ranks is changed, one at a time, as of a simulated one."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.edge.run_dir import RunDir
from harness.judge.required.not_evidence import NOT_EVIDENCE
from tests.app.conftest import harness
from tests.judge.tampering import listed, tamper

COMMON = """
train: {steps: 2, global_batch: 4, seq_length: 32}
documents: {mode: file, lengths: [20, 9, 13, 7]}
"""
RUNS = {
    "four": "matrix: {tp: 2, cp: 2, packing: reference}\nmodel: {layers: 2, moe: {experts: 4, aux_loss: aux_loss}}\n",
    "eight": "matrix: {tp: 2, pp: 2, cp: 2, packing: sft}\nchecks: {canaries: all}\nmodel: {layers: 2}\n",
}

pytestmark = pytest.mark.train


@pytest.mark.parametrize("name", RUNS)
def test_every_field_of_a_real_run_is_evidence_or_listed(name: str, tmp_path: Path) -> None:
    (tmp_path / "tamper.yaml").write_text(f"name: {name}\n{COMMON}{RUNS[name]}", encoding="utf-8")
    done = harness("run", "tamper.yaml", "--run-dir", "runs", "--no-history", cwd=tmp_path, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    [run] = (tmp_path / "runs").glob(f"{name}-*")
    found = tamper(RunDir(run))
    assert sum(found.tried.values()) > 1000
    assert set(found.passed) <= set(NOT_EVIDENCE), listed(found)
