"""No key of the model is ignored by one side: upstream's model is built with it, and the oracle reads it.

That each trainer gets it, or a rule rejects the cell: tests/upstreams/trainers/*/test_*.py, by the same values.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from harness.core.cell.config import CellConfig, ModelConfig
from harness.core.cell.upstream_config import asked, differences
from harness.core.run.records import BuiltSeen
from harness.core.setting import keys_of
from harness.features.attention.config import MlaConfig
from harness.features.experts.config import MoeConfig
from harness.features.prediction.config import MtpConfig
from harness.features.vision.config import VisionConfig
from harness.matrix.rules.trainer import OF_ALL
from harness.oracle.fields import MODELLED, Model
from harness.upstreams.table import UPSTREAM_TRAINERS
from tests.runtime.conftest import config
from tests.upstreams.trainers.megatron.test_flags import OF_EXPERTS, OTHER_VALUES

KEYS = {name.removeprefix("model."): value for name, value in OTHER_VALUES.items() if name.startswith("model.")}
ELSEWHERE = {
    "pattern": "the oracle reads it from the cell, since GPTModel has two of its layers in one",
    "peft": "the oracle reads it from the cell, since adapters are put beside the model that was built",
    "builder": "a model of a plug-in, which the oracle does not compute",
    "vision": "the oracle reads the configuration of the tower",
    "gathered_logits": "the same numbers, gathered from all ranks",
    "rope_fusion": "a kernel of the same computation",
}
NEEDED: dict[str, dict[str, Any]] = {  # by a key, to have an effect
    "window_skip": {"window": 8},
    "rope_scaling_factor": {"rope_scaling": True},
}
# Fields that the oracle reads and no key sets, with the value that all models have -> why.
CONSTANT = {
    "hidden_dropout": "0",
    "attention_dropout": "0",
    "bias_activation_fusion": "a kernel, which approximates GELU",
    "glu_linear_offset": "upstream's default",
    "activation_func_clamp_value": "upstream's default",
    "moe_router_num_groups": "upstream's default",
    "moe_router_group_topk": "upstream's default",
    "moe_router_topk_scaling_factor": "upstream's default",
    "cross_entropy_loss_fusion": "off",
    "fp16_lm_cross_entropy": "off",
    "should_pad_vocab": "off",
    "make_vocab_size_divisible_by": "a detail of it",
    "max_sequence_length": "train.seq_length",
    "num_layers_in_first_pipeline_stage": "of the layout: which stage has a layer, whose numbers do not depend on it",
    "num_layers_in_last_pipeline_stage": "likewise",
    "pipeline_model_parallel_layout": "likewise",
    "account_for_embedding_in_pipeline_split": "likewise",
    "account_for_loss_in_pipeline_split": "likewise",
    "mtp_standalone": "likewise",
    "rotary_scaling_factor": "YaRN's defaults in upstream",
    "original_max_position_embeddings": "likewise",
    "beta_fast": "likewise",
    "beta_slow": "likewise",
    "mscale": "likewise",
    "mscale_all_dim": "likewise",
    "mtp_block_spec": "an object",
    "pg_collection": "an object",
    "mrope_section": "of Qwen3-VL: tests/oracle/test_vision.py",
    "image_token_id": "likewise",
    "spatial_merge_size": "likewise",
    "patch_size": "likewise",
    "temporal_patch_size": "likewise",
    "in_channels": "likewise",
    "num_position_embeddings": "likewise",
    "out_hidden_size": "likewise",
    "deepstack_visual_indexes": "likewise",
    "apply_rotary_pos_emb_in_fp32": "likewise",
    "scatter_embedding_sequence_parallel": "likewise",
}


def cell(**model: Any) -> CellConfig:
    return replace(config(), model=ModelConfig(**model))


def read(found: CellConfig) -> Model:
    """The oracle's model of what a cell asks upstream for."""
    return Model.read([BuiltSeen(of=part, values=values) for part, values in asked(found).items()])


@pytest.mark.parametrize("name", sorted(keys_of(ModelConfig).keys() - ELSEWHERE))
def test_the_oracle_reads_what_upstream_is_asked_for_by_every_key(name: str) -> None:
    plain, changed = (cell(**NEEDED.get(name, {}), **more) for more in ({}, {name: KEYS[name]}))
    fields = [field for part in asked(plain) for field in differences(asked(plain)[part], asked(changed)[part])]
    assert fields, "upstream is not asked for it, or the guard does not compare it"
    assert read(changed) != read(plain)


def parts() -> Iterator[tuple[CellConfig, CellConfig]]:
    """Pairs of cells that differ in one key of a model, or of one of its parts."""
    for name in KEYS:
        needed = NEEDED.get(name, {})
        yield cell(**needed), cell(**needed, **{name: KEYS[name]})
    moe = MoeConfig(
        score_function="sigmoid", expert_bias=True, capacity_factor=2.0, aux_loss="seq_aux_loss", drop_policy="probs"
    )
    for name, value in OF_EXPERTS.items():
        yield cell(moe=moe), cell(moe=replace(moe, **{name: value}))
    mla = MlaConfig()
    for name, value in {"q_lora_rank": 8, "kv_lora_rank": 8, "qk_head_dim": 4, "v_head_dim": 4, "rope": "yarn"}.items():
        yield cell(mla=mla), cell(mla=replace(mla, **{name: value}))
    yield cell(mla=mla), cell(mla=replace(mla, qk_pos_emb_head_dim=8))
    yield cell(mtp=MtpConfig()), cell(mtp=MtpConfig(layers=2, loss_factor=0.5))
    yield cell(moe=MoeConfig()), cell(moe=MoeConfig(topk=1))
    yield config(), replace(config(), dtype="bf16")
    yield config(), replace(config(), options=replace(config().options, calculate_per_token_loss=False))


def test_every_field_that_the_oracle_reads_is_set_by_a_key_or_the_same_in_all_models() -> None:
    set_by_keys = {
        name
        for plain, changed in parts()
        for part in ("model", "constructor")
        for name in asked(plain)[part].keys() | asked(changed)[part].keys()
        if asked(plain)[part].get(name) != asked(changed)[part].get(name)
    }
    modelled = MODELLED["model"].keys() | MODELLED["constructor"].keys()
    assert (modelled - set_by_keys) - CONSTANT.keys() == set()
    assert CONSTANT.keys() - modelled == set()
    assert CONSTANT.keys() & set_by_keys == set()


def test_a_model_with_images_is_read_with_its_tower() -> None:
    assert asked(cell(vision=VisionConfig())).keys() - asked(cell()).keys() == {"tower"}


@pytest.mark.parametrize("trainer", UPSTREAM_TRAINERS)
def test_what_a_trainer_is_given_are_keys(trainer: str) -> None:
    assert {*OF_ALL, *UPSTREAM_TRAINERS[trainer].model} <= keys_of(ModelConfig).keys()
