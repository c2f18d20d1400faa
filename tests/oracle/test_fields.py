"""Every field of upstream's configurations is in one group, and what the oracle does not model is named."""

from __future__ import annotations

import inspect
from dataclasses import replace
from functools import partial
from itertools import chain

import pytest
import torch.nn.functional as F
from megatron.core.distributed import DistributedDataParallelConfig
from megatron.core.models.gpt.gpt_model import GPTModel
from megatron.core.optimizer import OptimizerConfig
from megatron.core.transformer.transformer_config import MLATransformerConfig

from harness.core.cell.config import CellConfig
from harness.core.cell.layout import Layout
from harness.core.cell.upstream_config import HARMLESS, asked
from harness.core.run.records import BuiltSeen
from harness.core.vision import VisionConfig
from harness.node.probe.built import _OF_STAGE, _defaults, text_of
from harness.oracle.fields import MODELLED, NOT_MODELLED, Model, Rotary, group_of, uncovered

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


def test_every_field_of_the_installed_release_is_in_a_group() -> None:
    found = [(part, name) for part, names in defaults().items() for name in names if group_of(part, name) is None]
    assert found == []


def test_every_field_of_qwen3_vl_is_in_a_group() -> None:
    assert [name for name in sorted(QWEN3_VL) if group_of("model", name) is None] == []


def test_no_field_has_two_answers() -> None:
    harmless, absent, read = (set(chain.from_iterable(table.values())) for table in (HARMLESS, NOT_MODELLED, MODELLED))
    of_tower = {"account_for_embedding_in_pipeline_split", "account_for_loss_in_pipeline_split"}  # which has no stages
    assert absent & read == of_tower
    assert harmless & absent == set()
    assert harmless & read == {"bias_activation_fusion", "calculate_per_token_loss", "rope_scaling_factor"}


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
