"""A model that is not its control's, past every check of arguments: the run gives no verdict, and says why."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.core.outcomes import Outcome
from harness.reporting.render_json import read_report
from tests.cli.conftest import harness, only_run

# A plug-in whose models are the harness's, but not with tp 2, which no control has.
PLUGIN = """
from dataclasses import replace
from megatron.core.models.gpt.gpt_model import GPTModel
from megatron.core.transformer.transformer_block import TransformerBlockSubmodules
from harness.probe.model.norm import norm_of
from harness.probe.model.parts import layer_spec

def built(config, upstream, arguments):
    specs = [layer_spec(config)] * upstream.num_layers
    layers = TransformerBlockSubmodules(layer_specs=specs, layer_norm=norm_of(config))
    return GPTModel(upstream, layers, **arguments)

def epsilon(config, upstream, stage, arguments):
    return built(config, upstream if config.layout.tp == 1 else replace(upstream, layernorm_epsilon=1e-3), arguments)

def rotary(config, upstream, stage, arguments):
    return built(config, upstream, arguments if config.layout.tp == 1 else {**arguments, "rotary_percent": 0.5})
"""
ENTRY_POINTS = "[packing_harness.models]\nepsilon = other_model:epsilon\nrotary = other_model:rotary\n"
MATRIX = """\
name: other
model: {layers: 2, hidden: 32, heads: 4, kv_heads: 2, ffn: 64, vocab: 64}
train: {steps: 1, global_batch: 8, seq_length: 64}
matrix:
  packing: reference
  tp: [1, 2]
  model.builder: [epsilon, rotary]
"""


@pytest.mark.train
def test_a_cell_with_another_model_than_its_control_is_an_error_with_both_values(tmp_path: Path) -> None:
    site = tmp_path / "site"
    (package, info) = site / "other_model", site / "other_model-1.0.dist-info"
    for folder, name, text in (
        (package, "__init__.py", PLUGIN),
        (info, "METADATA", "Metadata-Version: 2.1\nName: other-model\nVersion: 1.0\n"),
        (info, "entry_points.txt", ENTRY_POINTS),
    ):
        folder.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    (tmp_path / "other.yaml").write_text(MATRIX)
    done = harness("run", "other.yaml", cwd=tmp_path, env={"PYTHONPATH": str(site)})
    report = read_report((only_run(tmp_path / "reports") / "report.json").read_text())
    found = {(cell.axes["model.builder"], cell.axes["tp"]): cell for cell in report.cells if cell.role == "cell"}
    assert {place: cell.outcome for place, cell in found.items()} == {
        ("epsilon", 1): Outcome.PASS,
        ("rotary", 1): Outcome.PASS,
        ("epsilon", 2): Outcome.ERROR,
        ("rotary", 2): Outcome.ERROR,
    }, done.stdout
    other = "the model is not the control's"
    assert found["epsilon", 2].reason == f"{other}: layernorm_epsilon 0.001, control 1e-05"
    assert found["rotary", 2].reason == f"{other}: rotary_percent 0.5, control upstream's default"
    assert done.returncode == 3, done.stdout
