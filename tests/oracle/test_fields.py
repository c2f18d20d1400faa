"""Every field of upstream's configurations is in one group, and what the oracle does not model is named."""

from __future__ import annotations

import inspect
from itertools import chain

import pytest
from megatron.core.distributed import DistributedDataParallelConfig
from megatron.core.models.gpt.gpt_model import GPTModel
from megatron.core.optimizer import OptimizerConfig
from megatron.core.transformer.transformer_config import MLATransformerConfig

from harness.core.cell.built import HARMLESS
from harness.core.run.records import BuiltSeen
from harness.node.probe.built import _OF_STAGE, _defaults, text_of
from harness.oracle.fields import MODELLED, NOT_MODELLED, Model, group_of, uncovered

PLAIN = {"hidden_dropout": "0.0", "attention_dropout": "0.0"}


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


def test_no_field_has_two_answers() -> None:
    harmless, absent, read = (set(chain.from_iterable(table.values())) for table in (HARMLESS, NOT_MODELLED, MODELLED))
    assert absent & read == set()
    assert harmless & absent == set()
    assert harmless & read == {"bias_activation_fusion", "calculate_per_token_loss", "rope_scaling_factor"}


def test_the_tables_name_fields_of_the_installed_release_alone() -> None:
    known = set(chain.from_iterable(defaults().values()))
    absent = {"logit_dtype"}  # of a later release
    named = chain.from_iterable((*NOT_MODELLED.values(), *MODELLED.values()))
    assert sorted(set(named) - known - absent) == []


def test_what_is_read_has_the_defaults_of_the_installed_release() -> None:
    installed = defaults()
    differing = [
        (part, name, field.default, installed[part][name])
        for part, fields in MODELLED.items()
        for name, field in fields.items()
        if installed[part][name] not in (None, field.default) and name != "vocab_size"
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
