"""What ranks record of training with Megatron against the oracle, in every quantity that both have."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.oracle.distances import Distances, of_run

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
  model.mla: null
  model.mtp: null
  model.tied: false
  model.qk_layernorm: false
  model.window: null
  model.softmax: vanilla
  include:
    - &plain {tp: 1, packing: sft, model.moe: null, model.mla: null, model.mtp: null, model.tied: true, model.window: 5,
        model.qk_layernorm: true, model.softmax: learnable, calculate_per_token_loss: true}
    - {<<: *plain, packing: reference, calculate_per_token_loss: false, model.moe: *moe}
    - {<<: *plain, model.mla: {rope: yarn}, model.qk_layernorm: false, model.window: null, model.softmax: vanilla}
    - {<<: *plain, model.mtp: {layers: 2}, model.window: null, model.softmax: vanilla,
        model.moe: {topk: 1, score_function: sigmoid, expert_bias: true, bias_rate: 0.01, aux_loss: seq_aux_loss}}
"""
# fp32 allows no more: five times the largest distance of many clean cells, or a round number above it.
BOUNDS = {
    "loss": 1e-6,
    "norm": 5e-6,
    "gradient": 1e-5,
    "first_moment": 1e-5,
    "second_moment": 1e-5,
    "change": 1e-3,
    "trained": 1e-3,
    "layer": 5e-6,
    "balance": 1e-6,
    "z": 1e-6,
    "prediction": 1e-6,
    "bias": 1e-6,
}


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Distances]:
    folder = tmp_path_factory.mktemp("oracle")
    (folder / "matrix.yaml").write_text(MATRIX)
    harness = Path(sys.executable).with_name("harness")
    done = subprocess.run(
        [harness, "run", "matrix.yaml", "--run-dir", "runs"], cwd=folder, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    (run,) = (folder / "runs").glob("oracle-*")
    return of_run(run)


@pytest.mark.train
def test_every_cell_and_its_control_agree_with_the_oracle(found: dict[str, Distances]) -> None:
    assert len([name for name in found if "unpacked" not in name]) >= 12
    wrong = [
        f"{name}: {what} off by {value:.1e} at {where}"
        for name, distances in found.items()
        for what, (value, where) in distances.items()
        if value > BOUNDS[what]
    ]
    assert wrong == []


@pytest.mark.train
def test_every_quantity_is_compared_where_a_cell_has_it(found: dict[str, Distances]) -> None:
    always = {"loss", "norm", "gradient", "first_moment", "second_moment", "change", "trained", "layer"}
    for name, distances in found.items():
        more = {"balance", "z"} if "-z0.001" in name else {"balance", "bias"} if "bias" in name else set()
        more |= {"prediction"} if "mtp" in name else set()
        assert distances.keys() == always | more, name
