"""Every field of upstream's configurations is in one group, and what the oracle does not model is named."""

from __future__ import annotations

import inspect
import math
from collections.abc import Iterable
from dataclasses import replace
from functools import partial
from itertools import chain
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from megatron.core.distributed import DistributedDataParallelConfig
from megatron.core.models.gpt.gpt_model import GPTModel
from megatron.core.optimizer import OptimizerConfig
from megatron.core.transformer.transformer_config import MLATransformerConfig

from harness.core.cell.config import CellConfig
from harness.core.cell.layout import Layout
from harness.core.cell.upstream_config import HARMLESS, asked
from harness.core.run.records import BuiltSeen
from harness.features.adapters.config import PeftConfig
from harness.features.vision.config import VisionConfig
from harness.oracle.fields import (
    MODELLED,
    NOT_MODELLED,
    DeltaNet,
    Experts,
    Latent,
    Mamba,
    Model,
    Optimizer,
    Rotary,
    Vision,
    Yarn,
    uncovered,
)
from harness.probe.built import _OF_STAGE, _defaults, text_of

PLAIN = {"hidden_dropout": "0.0", "attention_dropout": "0.0"}
# What Megatron-Bridge's Qwen3VLTransformerConfig adds, in 0.5, 0.6 and its main branch: it is not installed.
QWEN3_VL = {
    "apply_rotary_pos_emb_in_fp32",
    "deepstack_visual_indexes",
    "fp16_lm_cross_entropy",
    "hf_text_config",
    "image_token_id",
    "in_channels",
    "language_max_sequence_length",
    "logit_dtype",
    "make_vocab_size_divisible_by",
    "max_vision_cuda_graph_seq_length",
    "mrope_section",
    "num_position_embeddings",
    "out_hidden_size",
    "patch_size",
    "rotary_base",
    "rotary_percent",
    "share_embeddings_and_output_weights",
    "should_pad_vocab",
    "spatial_merge_size",
    "temporal_patch_size",
    "use_hf_vision_model",
    "video_token_id",
    "vision_dp_when_cp",
    "vision_start_token_id",
    "vocab_size",
}
MROPE = {"position_embedding_type": '"mrope"'}


def defaults() -> dict[str, dict[str, str | None]]:
    """Part -> field -> default of the installed release."""
    given = inspect.signature(GPTModel.__init__).parameters.values()
    required = inspect.Parameter.empty
    arguments = {one.name: None if one.default is required else text_of(one.default) for one in given}
    for name in ("self", "config", "transformer_layer_spec", *_OF_STAGE):
        arguments.pop(name, None)
    return {
        "model": _defaults(MLATransformerConfig),
        "constructor": arguments,
        "ddp": _defaults(DistributedDataParallelConfig),
        "optimizer": _defaults(OptimizerConfig),
    }


def model(**values: str) -> list[BuiltSeen]:
    return [BuiltSeen(of="model", values=PLAIN | values)]


def in_no_group(part: str, names: Iterable[str]) -> set[str]:
    known = chain(MODELLED.get(part, {}), *NOT_MODELLED.values(), *HARMLESS.values())
    return {*names} - {*known}


def test_every_field_of_the_installed_release_is_in_a_group() -> None:
    assert [(part, lost) for part, names in defaults().items() if (lost := in_no_group(part, names))] == []


def test_every_field_of_qwen3_vl_is_in_a_group() -> None:
    assert in_no_group("model", QWEN3_VL) == set()


def test_no_field_has_two_answers() -> None:
    harmless, absent, read = (set(chain.from_iterable(table.values())) for table in (HARMLESS, NOT_MODELLED, MODELLED))
    assert absent & read == set()
    assert harmless & absent == set()
    assert harmless & read == {"bias_activation_fusion", "calculate_per_token_loss", "max_sequence_length"}


def test_the_tables_name_fields_of_the_installed_release_alone() -> None:
    known = set(chain.from_iterable(defaults().values())) | QWEN3_VL
    absent = {"logit_dtype"}  # of a later release
    named = chain.from_iterable((*NOT_MODELLED.values(), *MODELLED.values()))
    assert sorted(set(named) - known - absent) == []


def test_what_is_read_has_the_defaults_of_the_installed_release() -> None:
    installed = defaults()
    differing = [
        (part, name, field.default, known)
        for part, fields in MODELLED.items()
        for name, field in fields.items()
        if (known := installed.get(part, {}).get(name)) not in (None, field.default) and name != "vocab_size"
    ]
    assert differing == []


def test_fields_that_are_unknown_or_not_modelled_are_named_with_their_value() -> None:
    assert uncovered(model()) == []
    assert uncovered(model(fp8='"hybrid"', brand_new="3")) == [("brand_new", "3"), ("fp8", '"hybrid"')]


@pytest.mark.parametrize(
    ("part", "name", "value"),
    [
        ("model", "activation_func", "tanh"),
        ("model", "softmax_type", '"other"'),
        ("model", "hidden_dropout", "0.2"),
        ("constructor", "position_embedding_type", '"mrope"'),
        ("optimizer", "optimizer", '"muon"'),
        ("optimizer", "decoupled_lr", "0.1"),
        ("ddp", "brand_new", "1"),
    ],
)
def test_a_value_that_is_not_modelled_is_named(part: str, name: str, value: str) -> None:
    assert (name, value) in uncovered([*model(), BuiltSeen(of=part, values={name: value})])


def test_a_value_that_is_modelled_and_a_field_that_is_harmless_are_not_named() -> None:
    given = model(
        activation_func="silu", tensor_model_parallel_size="2", moe_router_dtype='"fp32"', window_size="[4, 0]"
    )
    assert uncovered(given) == []


def test_an_optional_argument_that_a_later_release_has_is_named_if_it_is_given() -> None:
    def given(value: str) -> list[BuiltSeen]:
        return [*model(), BuiltSeen(of="constructor", values={"brand_new": value})]

    assert uncovered(given("null")) == []
    assert uncovered(given("3")) == [("brand_new", "3")]


def test_dropout_at_its_default_is_named() -> None:
    assert uncovered([BuiltSeen(of="model", values={})]) == [("attention_dropout", "0.1"), ("hidden_dropout", "0.1")]


def test_details_of_what_is_off_are_not_named() -> None:
    assert uncovered(model(moe_latent_size="8", mtp_use_repeated_layer="true")) == []
    assert uncovered(model(num_moe_experts="4", add_bias_linear="false", moe_latent_size="8")) == [
        ("moe_latent_size", "8")
    ]


def test_combinations_that_are_not_modelled_are_named() -> None:
    assert uncovered(model(num_moe_experts="4")) == [("num_moe_experts, add_bias_linear", "biases of experts")]
    windows = {"window_size": "[4, 0]", "window_attn_skip_freq": "2"}
    assert uncovered(model(**windows)) == uncovered(model(window_size="[4, 0]", mtp_num_layers="1")) == []
    assert [name for name, _ in uncovered(model(**windows, mtp_num_layers="1"))] == [
        "window_attn_skip_freq, mtp_num_layers"
    ]


def seeing(model_values: dict[str, str], constructor: dict[str, str], **tower: str) -> list[BuiltSeen]:
    return [
        *model(mrope_section="[2, 1, 1]", **model_values),
        BuiltSeen(of="constructor", values=MROPE | constructor),
        BuiltSeen(of="tower", values=PLAIN | tower),
    ]


def test_an_image_tower_is_covered_and_what_it_has_otherwise_is_named() -> None:
    assert uncovered(seeing({}, {}, activation_func='gelu(approximate: "tanh")', patch_size="14")) == []
    assert uncovered(seeing({"use_hf_vision_model": "true"}, {}, gated_linear_unit="true", brand_new="1")) == [
        ("brand_new", "1"),
        ("gated_linear_unit", "true"),
        ("use_hf_vision_model", "true"),
    ]
    assert ("hidden_dropout", "0.1") in uncovered([*seeing({}, {})[:2], BuiltSeen(of="tower", values={})])


def test_what_a_cell_with_images_asks_for_is_covered() -> None:
    plain = CellConfig(layout=Layout(), data_path="unpacked")
    asks = asked(replace(plain, model=replace(plain.model, vision=VisionConfig())))
    assert text_of(partial(F.gelu, approximate="tanh")) == asks["tower"]["activation_func"]
    assert asks["tower"].keys() - MODELLED["tower"].keys() == set()
    assert uncovered([BuiltSeen(of=of, values=values) for of, values in asks.items()]) == []


def test_positions_along_three_axes_are_those_of_qwen3_vl() -> None:
    assert uncovered([*model(), BuiltSeen(of="constructor", values=MROPE)]) == [("position_embedding_type", '"mrope"')]
    assert uncovered([*model(), BuiltSeen(of="tower", values=PLAIN)])[0][0] == "position_embedding_type"
    for values, constructor in (({"rotary_interleaved": "true"}, {}), ({}, {"rope_scaling": "true"})):
        assert [value for _, value in uncovered(seeing(values, constructor))] == ["not those of Qwen3-VL"]


def test_the_tower_is_read_from_its_own_configuration() -> None:
    sizes = {"hidden_size": "16", "num_attention_heads": "2", "num_layers": "3", "layernorm_epsilon": "1e-06"}
    ours = {"num_layers": "1", "hidden_size": "8", "num_attention_heads": "1", "image_token_id": "4"}
    read = Model.read(seeing(ours, {}, deepstack_visual_indexes="[0, 2]", activation_func="gelu", **sizes))
    assert (read.layers, read.hidden, read.rotary) == (1, 8, Rotary(sections=(2, 1, 1)))
    assert read.vision is not None
    assert (read.vision.token, read.vision.deepstack, read.vision.patch) == (4, (0, 2), (3, 2, 16, 16))
    tower = read.vision.tower
    assert (tower.layers, tower.hidden, tower.head, tower.epsilon, tower.ffn) == (3, 16, 8, 1e-6, 64)
    assert (tower.activation, tower.approximate, tower.causal, tower.qkv_bias) == ("gelu", False, False, True)


def test_nothing_recorded_is_not_covered() -> None:
    assert uncovered([]) == [("model", "not recorded")]


def test_layers_with_experts_follow_a_frequency_or_a_list() -> None:
    def layers(frequency: str) -> list[bool]:
        read = Model.read(model(num_layers="4", num_attention_heads="1", num_moe_experts="2", moe_layer_freq=frequency))
        return [read.has_experts(number) for number in range(1, 6)]

    assert layers("1") == [True] * 5
    assert layers("2") == [True, False, True, False, False]  # a prediction layer is like the last one
    assert layers("[0, 0, 1, 1]") == [False, False, True, True, True]


@pytest.mark.parametrize(
    ("skip", "windowed"), [("null", [True] * 4), ("2", [True, False] * 2), ("[0, 1, 1, 0]", [False, True, True, False])]
)
def test_windows_leave_out_every_so_many_layers_or_those_of_a_list(skip: str, windowed: list[bool]) -> None:
    read = Model.read(model(num_layers="4", num_attention_heads="1", window_size="[4, 0]", window_attn_skip_freq=skip))
    assert [read.is_windowed(number) for number in range(1, 5)] == windowed


SMALL = {"num_layers": "2", "hidden_size": "8", "num_attention_heads": "2"}
DEFAULT = Model(
    layers=2,
    hidden=8,
    vocab=0,
    heads=2,
    groups=2,
    head=4,
    ffn=32,
    normalization="LayerNorm",
    gated=False,
    activation="gelu",
    bias=True,
    qkv_bias=True,
    rotary=None,
    per_token=False,
)


def test_a_model_is_as_upstream_has_it_where_nothing_is_given() -> None:
    assert Model.read(model(**SMALL)) == DEFAULT


@pytest.mark.parametrize(
    ("name", "text", "changed"),
    [
        ("num_layers", "3", {"layers": 3}),
        ("hidden_size", "16", {"hidden": 16, "head": 8, "ffn": 64}),
        ("num_attention_heads", "4", {"heads": 4, "groups": 4, "head": 2}),
        ("num_query_groups", "1", {"groups": 1}),
        ("kv_channels", "6", {"head": 6}),
        ("ffn_hidden_size", "12", {"ffn": 12}),
        ("normalization", '"RMSNorm"', {"normalization": "RMSNorm"}),
        ("layernorm_epsilon", "0.001", {"epsilon": 1e-3}),
        ("layernorm_zero_centered_gamma", "true", {"centered_gamma": True}),
        ("gated_linear_unit", "true", {"gated": True}),
        ("activation_func", "silu", {"activation": "silu"}),
        ("bias_activation_fusion", "true", {"approximate": True}),
        ("glu_linear_offset", "1.0", {"glu_offset": 1.0}),
        ("activation_func_clamp_value", "7.0", {"clamp": 7.0}),
        ("add_bias_linear", "false", {"bias": False, "qkv_bias": False}),
        ("qk_layernorm", "true", {"qk_norm": True}),
        ("window_size", "[4, 0]", {"window": (4, 0)}),
        ("window_attn_skip_freq", "3", {"window_skip": 3}),
        ("softmax_type", '"learnable"', {"softmax": "learnable"}),
        ("softmax_scale", "0.3", {"softmax_scale": 0.3}),
        ("mtp_num_layers", "2", {"predictions": 2}),
        ("mtp_loss_scaling_factor", "0.3", {"prediction_weight": 0.3}),
        ("mtp_loss_scaling_factor", "null", {"prediction_weight": 0.0}),
        ("calculate_per_token_loss", "true", {"per_token": True}),
        ("params_dtype", "torch.bfloat16", {"stored": torch.bfloat16}),
    ],
)
def test_each_field_of_a_model_is_read(name: str, text: str, changed: dict[str, Any]) -> None:
    assert Model.read(model(**SMALL | {name: text})) == replace(DEFAULT, **changed)


def test_biases_of_queries_keys_and_values_may_be_the_only_ones() -> None:
    read = Model.read(model(**SMALL, add_bias_linear="false", add_qkv_bias="true"))
    assert (read.bias, read.qkv_bias) == (False, True)


def test_adapters_and_a_pattern_come_from_the_cell() -> None:
    assert Model.read(model(**SMALL), PeftConfig(rank=3)) == replace(DEFAULT, adapters=PeftConfig(rank=3))
    read = Model.read(model(**SMALL), pattern="*-|*-")
    assert (read.layers, read.pattern, read.delta, read.mamba) == (4, "*-*-", None, None)


def constructed(**values: str) -> Model:
    return Model.read([*model(**SMALL), BuiltSeen(of="constructor", values=values)])


def test_arguments_of_the_constructor_are_read() -> None:
    assert constructed(vocab_size="9") == replace(DEFAULT, vocab=9)
    assert constructed(share_embeddings_and_output_weights="true").tied


@pytest.mark.parametrize(
    ("name", "text", "changed"),
    [
        ("rotary_base", "500", {"base": 500}),
        ("rotary_percent", "0.5", {"percent": 0.5}),
        ("seq_len_interpolation_factor", "4.0", {"interpolation": 4.0}),
        ("rope_scaling_factor", "4.0", {}),
        ("rope_scaling", "true", {"llama_factor": 8.0}),
    ],
)
def test_each_argument_of_positions_is_read(name: str, text: str, changed: dict[str, Any]) -> None:
    read = constructed(**{"position_embedding_type": '"rope"', name: text})
    assert read.rotary == replace(Rotary(), **changed)


def test_learned_positions_have_a_place_each_and_some_layers_no_rotary_ones() -> None:
    learned = {"position_embedding_type": '"learned_absolute"', "max_sequence_length": "64"}
    assert constructed(**learned) == replace(DEFAULT, places=64)
    rotary = BuiltSeen(of="constructor", values={"position_embedding_type": '"rope"', "max_sequence_length": "64"})
    read = Model.read([*model(**SMALL, no_rope_freq="[0, 1]"), rotary])
    assert (read.places, [read.turns(number) for number in (1, 2)]) == (None, [True, False])
    predicting = [*model(mtp_num_layers="1"), BuiltSeen(of="constructor", values=learned)]
    assert [name for name, _ in uncovered(predicting)] == ["position_embedding_type, mtp_num_layers"]
    assert [name for name, _ in uncovered(model(mtp_num_layers="1", no_rope_freq="[0, 1]"))] == [
        "no_rope_freq, mtp_num_layers"
    ]


def test_interleaved_pairs_are_a_field_of_the_model_and_none_has_no_positions() -> None:
    turned = BuiltSeen(of="constructor", values={"position_embedding_type": '"rope"'})
    assert Model.read([*model(**SMALL, rotary_interleaved="true"), turned]).rotary == Rotary(interleaved=True)
    assert constructed(position_embedding_type='"none"', rope_scaling="true").rotary is None


LATENT = SMALL | {"multi_latent_attention": "true"}


@pytest.mark.parametrize(
    ("name", "text", "changed"),
    [
        ("q_lora_rank", "null", {"query_rank": None}),
        ("kv_lora_rank", "5", {"rank": 5}),
        ("qk_head_dim", "36", {"still": 36, "scale": 0.1}),
        ("qk_pos_emb_head_dim", "272", {"turned": 272, "scale": 0.05}),
        ("v_head_dim", "5", {"value": 5}),
        ("rotary_base", "500", {"rotary": Rotary(base=500, pairs_in=True)}),
        ("rotary_percent", "0.5", {"rotary": Rotary(percent=0.5, pairs_in=True)}),
    ],
)
def test_each_field_of_latent_attention_is_read(name: str, text: str, changed: dict[str, Any]) -> None:
    read = Model.read(model(**LATENT | {"rope_type": '"rope"', name: text})).latent
    assert read is not None
    right = Latent(
        query_rank=512, rank=512, still=128, turned=64, value=128, scale=192**-0.5, rotary=Rotary(pairs_in=True)
    )
    assert read == replace(right, **{"scale": pytest.approx(192**-0.5)} | changed)


def test_yarn_of_latent_attention_is_read_and_turns_whole_heads() -> None:
    stretched = {
        "rotary_scaling_factor": "8",
        "original_max_position_embeddings": "64",
        "beta_fast": "16",
        "beta_slow": "2",
        "mscale": "0.7",
        "mscale_all_dim": "0.9",
        "rotary_percent": "0.5",
    }
    read = Model.read(model(**LATENT | stretched)).latent
    assert read is not None
    yarn = Yarn(factor=8, context=64, fast=16, slow=2, mscale=0.7, mscale_all=0.9)
    assert read.rotary == Rotary(yarn=yarn, pairs_in=True)
    assert read.scale == pytest.approx((0.1 * 0.9 * math.log(8) + 1) ** 2 / 192**0.5)
    plain = Model.read(model(**LATENT | stretched | {"rope_type": '"rope"'})).latent
    assert plain is not None and plain.scale == read.scale


ROUTED = SMALL | {"num_moe_experts": "4"}


@pytest.mark.parametrize(
    ("name", "text", "changed"),
    [
        ("num_moe_experts", "6", {"count": 6}),
        ("moe_router_topk", "3", {"chosen": 3}),
        ("moe_ffn_hidden_size", "5", {"ffn": 5}),
        ("moe_router_score_function", '"sigmoid"', {"score": "sigmoid"}),
        ("moe_router_pre_softmax", "true", {"before": True}),
        ("moe_router_topk_scaling_factor", "2.5", {"factor": 2.5}),
        ("moe_router_num_groups", "2", {"groups": 2}),
        ("moe_router_group_topk", "1", {"chosen_groups": 1}),
        ("moe_router_enable_expert_bias", "true", {"biased": True}),
        ("moe_router_bias_update_rate", "0.5", {"bias_rate": 0.5}),
        ("moe_router_load_balancing_type", '"seq_aux_loss"', {}),
        ("moe_aux_loss_coeff", "0.5", {"balance": "aux_loss", "balance_weight": 0.5}),
        ("moe_z_loss_coeff", "0.5", {"z_weight": 0.5}),
        ("moe_expert_capacity_factor", "1.5", {"capacity": 1.5}),
        ("moe_token_drop_policy", '"position"', {"drop": "position"}),
        ("moe_pad_expert_input_to_capacity", "true", {"filled": True}),
        ("moe_shared_expert_intermediate_size", "5", {"shared": 5}),
        ("moe_shared_expert_gate", "true", {"shared_gate": True}),
    ],
)
def test_each_field_of_experts_is_read(name: str, text: str, changed: dict[str, Any]) -> None:
    """A kind of auxiliary loss without a weight is none."""
    read = Model.read(model(**ROUTED | {"ffn_hidden_size": "12", name: text}))
    assert read.experts == replace(Experts(count=4, chosen=2, ffn=12), **changed)
    assert read.expert_layers == (True, True)


HYBRID = {
    "linear_conv_kernel_dim": "3",
    "linear_key_head_dim": "5",
    "linear_value_head_dim": "6",
    "linear_num_key_heads": "2",
    "linear_num_value_heads": "4",
    "mamba_state_dim": "7",
    "mamba_head_dim": "4",
    "mamba_num_groups": "2",
}


def test_recurrent_layers_are_read_where_the_pattern_has_them() -> None:
    read = Model.read(model(**SMALL | HYBRID), pattern="GM")
    assert read.delta == DeltaNet(heads=4, value=6, key_heads=2, key=5, taps=3)
    assert read.mamba == Mamba(heads=4, size=4, groups=2, state=7) and isinstance(read.mamba.heads, int)
    given = Model.read(model(**SMALL | HYBRID | {"mamba_num_heads": "6"}), pattern="GM").mamba
    assert given == Mamba(heads=6, size=4, groups=2, state=7)
    assert Model.read(model(**SMALL | HYBRID), pattern="G*").mamba is None
    assert Model.read(model(**SMALL | HYBRID), pattern="M*").delta is None


@pytest.mark.parametrize(
    ("name", "text", "changed"),
    [
        ("adam_beta1", "0.5", {"beta1": 0.5}),
        ("adam_beta2", "0.5", {"beta2": 0.5}),
        ("adam_eps", "0.5", {"epsilon": 0.5}),
        ("decoupled_weight_decay", "false", {"decoupled": False}),
        ("clip_grad", "0.5", {"clip": 0.5}),
    ],
)
def test_each_field_of_an_optimizer_is_read(name: str, text: str, changed: dict[str, Any]) -> None:
    assert Optimizer.read([BuiltSeen(of="optimizer", values={name: text})]) == replace(Optimizer(), **changed)


TOWER = {"hidden_size": "16", "num_attention_heads": "2", "num_layers": "3"}


@pytest.mark.parametrize(
    ("name", "text", "changed"),
    [
        ("num_query_groups", "1", {"groups": 1}),
        ("kv_channels", "6", {"head": 6}),
        ("ffn_hidden_size", "12", {"ffn": 12}),
        ("normalization", '"RMSNorm"', {"normalization": "RMSNorm"}),
        ("layernorm_epsilon", "0.001", {"epsilon": 1e-3}),
        ("layernorm_zero_centered_gamma", "true", {"centered_gamma": True}),
        ("activation_func", 'gelu(approximate: "tanh")', {"approximate": True}),
        ("activation_func", "silu", {"activation": "silu"}),
        ("add_bias_linear", "false", {"bias": False, "qkv_bias": False}),
    ],
)
def test_each_field_of_the_layers_of_a_tower_is_read(name: str, text: str, changed: dict[str, Any]) -> None:
    read = Model.read(seeing(SMALL, {}, **TOWER | {name: text})).vision
    right = replace(DEFAULT, layers=3, hidden=16, head=8, ffn=64, causal=False, rotary=Rotary(planar=True))
    assert read is not None and read.tower == replace(right, **{"per_token": True} | changed)


@pytest.mark.parametrize(
    ("name", "text", "changed"),
    [
        ("patch_size", "14", {"patch": (3, 2, 14, 14)}),
        ("temporal_patch_size", "1", {"patch": (3, 1, 16, 16)}),
        ("in_channels", "1", {"patch": (1, 2, 16, 16)}),
        ("spatial_merge_size", "3", {"merge": 3}),
        ("num_position_embeddings", "9", {"places": 9}),
        ("out_hidden_size", "8", {"out": 8}),
        ("deepstack_visual_indexes", "[1]", {"deepstack": (1,)}),
    ],
)
def test_each_field_of_a_tower_is_read(name: str, text: str, changed: dict[str, Any]) -> None:
    read, plain = (Model.read(seeing(SMALL, {}, **TOWER | more)).vision for more in ({name: text}, {}))
    assert read is not None and plain is not None
    defaults = {"patch": (3, 2, 16, 16), "merge": 2, "places": 2304, "out": 4096, "deepstack": (8, 16, 24)}
    assert plain == Vision(tower=plain.tower, token=151655, **defaults)  # type: ignore[arg-type]
    assert read == replace(plain, **changed)


def test_biases_of_a_tower_may_be_those_of_queries_keys_and_values_alone() -> None:
    read = Model.read(seeing(SMALL, {}, **TOWER, add_bias_linear="false", add_qkv_bias="true")).vision
    assert read is not None and (read.tower.bias, read.tower.qkv_bias) == (False, True)


def test_what_later_chunks_of_a_rank_record_counts() -> None:
    chunks = [*model(**SMALL), *model(num_layers="5")]
    assert Model.read(chunks) == replace(DEFAULT, layers=5)


def test_other_combinations_that_are_not_modelled_are_named() -> None:
    both = model(multi_latent_attention="true", rotary_interleaved="true")
    assert uncovered(both) == [("multi_latent_attention, rotary_interleaved", "both")]
    assert uncovered([*seeing({}, {})[1:], *model()]) == [
        ("position_embedding_type, rope_scaling, rotary_interleaved, mrope_section", "not those of Qwen3-VL")
    ]
    assert uncovered([*model(), BuiltSeen(of="tower", values=PLAIN)])[0] == ("position_embedding_type", "null")


def test_values_are_modelled_in_any_spelling() -> None:
    assert uncovered(model(hidden_dropout="0", normalization='"RMSNorm"')) == []
    assert uncovered(model(normalization='"Other"')) == [("normalization", '"Other"')]


@pytest.mark.parametrize(
    ("context", "fast", "slow", "shares"),
    [
        (256, 16.0, 1.0, [0, 0, 0, *(number / 9 for number in range(1, 6))]),  # numbers 2.7 and 10.7
        (65_536, 4096.0, 1.0, [0, 0, 0, *(number / 13 for number in range(1, 6))]),  # 2.7 and 26.7, of at most 15
        (5, 2.0, 1.0, [0, *[1] * 7]),  # both below the first
    ],
)
def test_yarn_divides_the_frequencies_between_its_turns_by_more_and_more(
    context: int, fast: float, slow: float, shares: list[float]
) -> None:
    """Of 8 frequencies of base 16."""
    yarn = Yarn(factor=4.0, context=context, fast=fast, slow=slow, mscale=1.0, mscale_all=0.0)
    found = yarn.stretched(torch.ones(8, dtype=torch.float64), 16, 16.0)
    assert found.tolist() == pytest.approx([1 - 0.75 * share for share in shares], rel=1e-12)


@pytest.mark.parametrize(("factor", "more"), [(4.0, 0.05 * math.log(4.0)), (1.5, 0.05 * math.log(1.5)), (0.5, 0.0)])
def test_only_what_is_stretched_is_warmer(factor: float, more: float) -> None:
    yarn = Yarn(factor=factor, context=256, fast=16.0, slow=1.0, mscale=1.0, mscale_all=0.0)
    assert yarn.temperature(0.5) == pytest.approx(1 + more)


def test_letters_of_a_pattern_mix_or_feed_and_other_layers_do_both() -> None:
    read = Model.read(model(**SMALL), pattern="*-ME")
    assert [read.has_experts(number) for number in range(1, 5)] == [False, False, False, True]
    assert [read.mixes(number) for number in range(1, 5)] == [True, False, True, False]
    assert [read.feeds(number) for number in range(1, 5)] == [False, True, False, True]
    assert all(DEFAULT.mixes(number) and DEFAULT.feeds(number) for number in (1, 2))


def test_all_fields_of_an_unknown_part_are_named() -> None:
    assert uncovered([*model(), BuiltSeen(of="other", values={"brand_new": "1"})]) == [("brand_new", "1")]
