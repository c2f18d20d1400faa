"""Training with Megatron against the oracle: features that no shipped matrix combines, on one rank and two."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

MATRIX = """
name: oracle
model: {layers: 2, hidden: 32, heads: 4, kv_heads: 2, ffn: 48, vocab: 64}
train: {steps: 2, global_batch: 8, seq_length: 64}
documents: {mode: adversarial}
args: {clip_grad: 0.5, weight_decay: 0.1, adam_beta2: 0.95}
matrix:
  tp: [1, 2]
  packing: [reference, sft]
  model.moe: [null, &moe {experts: 4, topk: 2, ffn: 24, aux_loss: aux_loss, z_loss_coeff: 0.001}]
  calculate_per_token_loss: true
  dtype: fp32
  model.mla: null
  model.mtp: null
  model.tied: false
  model.qk_layernorm: false
  model.window: null
  model.softmax: vanilla
  model.pattern: ""
  model.layers: 2
  include:
    - &plain {tp: 1, packing: sft, model.moe: null, model.mla: null, model.mtp: null, model.tied: true, model.window: 5,
        model.qk_layernorm: true, model.softmax: learnable, calculate_per_token_loss: true, dtype: fp32,
        model.pattern: "", model.layers: 2}
    - {<<: *plain, packing: reference, calculate_per_token_loss: false, model.moe: *moe}
    - {<<: *plain, model.mla: {rope: yarn}, model.qk_layernorm: false, model.window: null, model.softmax: vanilla}
    - {<<: *plain, model.mtp: {layers: 2}, model.window: null, model.softmax: vanilla,
        model.moe: {topk: 1, score_function: sigmoid, expert_bias: true, bias_rate: 0.01, aux_loss: seq_aux_loss}}
    - {<<: *plain, dtype: bf16, tp: 2, model.softmax: vanilla}
    - {<<: *plain, tp: 2, model.pattern: GM*E, model.layers: 4, model.moe: *moe, model.window: null,
        model.softmax: vanilla, model.qk_layernorm: false}
"""


@pytest.mark.train
def test_every_cell_and_its_control_agree_with_the_oracle(tmp_path: Path) -> None:
    (tmp_path / "matrix.yaml").write_text(MATRIX)
    harness = Path(sys.executable).with_name("harness")
    done = subprocess.run(
        [harness, "run", "matrix.yaml", "--run-dir", "runs"], cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    (report,) = tmp_path.glob("runs/oracle-*/report.json")
    cells = json.loads(report.read_text())["cells"]
    assert len(cells) >= 12
    for cell in cells:
        assert (cell["outcome"], cell["lanes"]["numerics"]) == ("PASS", "pass"), cell["id"]
        assert cell["evidence"]["reference"] == "the oracle", cell["id"]
        assert not cell["evidence"]["not_compared"], cell["id"]
