from __future__ import annotations

import pytest

from harness.features.adapters.config import PeftConfig, is_adapter


@pytest.mark.parametrize(
    ("peft", "name"),
    [
        (PeftConfig(), "lora4"),
        (PeftConfig(method="dora", rank=8, alpha=2), "dora8-alpha2"),
        (PeftConfig(method="canonical_lora", targets=("linear_q", "linear_v")), "canonical_lora4-q_v"),
    ],
)
def test_the_name_shows_what_is_adapted(peft: PeftConfig, name: str) -> None:
    assert str(peft) == name


def test_canonical_lora_adapts_the_layers_that_hold_its_targets() -> None:
    peft = PeftConfig(method="canonical_lora", targets=("linear_q", "linear_fc1_up"))
    layer = "decoder.layers.0"
    assert peft.adapts(f"{layer}.self_attention.linear_qkv.weight")
    assert peft.adapts(f"{layer}.mlp.linear_fc1.weight")
    assert not peft.adapts(f"{layer}.mlp.linear_fc2.weight")
    assert not peft.adapts(f"{layer}.self_attention.linear_qkv.adapter.adapter_q.linear_in.weight")


def test_parameters_of_adapters_are_known_by_their_names() -> None:
    assert is_adapter("decoder.layers.0.mlp.linear_fc1.adapter.linear_in.weight")
    assert not is_adapter("decoder.layers.0.mlp.linear_fc1.weight")


def test_only_one_adapter_per_weight_is_merged() -> None:
    assert [PeftConfig(method=name).merges for name in ("lora", "dora", "canonical_lora")] == [True, False, False]
