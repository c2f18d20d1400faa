"""`init --from recipe:NAME`: recipes of Megatron-Bridge, built by its own code in the environment of a release."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from harness.cli.from_run import matrix_of_run
from harness.cli.scaffold import Machine
from harness.core.errors import InputError

pytestmark = pytest.mark.long

MACHINE = Machine(cores=2, gpus=0)
MATRIX = Path("matrix.yaml")
# As Hugging Face keeps them in its cache: a small part of the file, which the recipe's bridge reads.
CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_attention_heads": 32,
    "num_hidden_layers": 32,
    "num_key_value_heads": 8,
    "rms_norm_eps": 1e-5,
    "rope_theta": 500000.0,
    "max_position_embeddings": 8192,
    "vocab_size": 128256,
    "tie_word_embeddings": False,
    "hidden_act": "silu",
    "torch_dtype": "bfloat16",
}


@pytest.fixture(autouse=True)
def an_empty_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    return tmp_path / "hf"


def test_the_layout_of_a_recipe_is_kept_as_far_as_it_fits() -> None:
    made = yaml.safe_load(matrix_of_run("recipe:gpt3_175b_pretrain_32gpu_h100_bf16_config", MACHINE, MATRIX))
    assert made["origin"]["source"] == "the configuration in recipe:gpt3_175b_pretrain_32gpu_h100_bf16_config"
    assert made["matrix"]["stack"] == ["bridge-0.6.2"]
    assert "vpp 6" in made["origin"]["kept"]
    assert {"tp 4 -> 2", "pp 8 -> 2 and 4"} <= set(made["origin"]["shrunk"])


def test_an_unknown_recipe_comes_with_the_nearest() -> None:
    with pytest.raises(InputError, match=r"nearest: .*llama3_8b_sft_config"):
        matrix_of_run("recipe:llama3_8b_stf_config", MACHINE, MATRIX)


def test_a_recipe_whose_model_is_not_here_says_what_to_give(an_empty_cache: Path) -> None:
    with pytest.raises(InputError, match=r"(?s)Meta-Llama-3-8B.*hf download.*run_config\.yaml"):
        matrix_of_run("recipe:llama3_8b_sft_config", MACHINE, MATRIX)
    _put(an_empty_cache, "meta-llama/Meta-Llama-3-8B")
    made = yaml.safe_load(matrix_of_run("recipe:llama3_8b_sft_config", MACHINE, MATRIX))
    assert made["matrix"]["packing"] == "bridge_offline"
    assert "model.layers 32 -> 1" in made["origin"]["shrunk"]


def _put(cache: Path, model: str) -> None:
    folder = cache / "hub" / f"models--{model.replace('/', '--')}"
    commit = "0" * 40
    (folder / "refs").mkdir(parents=True)
    (folder / "refs" / "main").write_text(commit)
    (folder / "snapshots" / commit).mkdir(parents=True)
    (folder / "snapshots" / commit / "config.json").write_text(json.dumps(CONFIG))
