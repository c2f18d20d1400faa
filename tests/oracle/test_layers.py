"""Linear maps and norms: where biases enter, and what is noted of them."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from harness.features.adapters.config import DORA, PeftConfig
from harness.oracle.fields import Model
from harness.oracle.layers import Noted, linear, norm, note

TINY = Model(layers=1, hidden=4, vocab=5, heads=2, groups=1, head=2, ffn=3)


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_nothing_is_noted_unless_it_is_asked_for() -> None:
    note("module", "returns", drawn(2))


@pytest.mark.parametrize("name", ["linear_qkv", "linear_proj", "linear_fc1"])
def test_linear_layers_are_those_of_torch_and_return_no_bias_but_that_of_queries_keys_and_values(
    name: str, noted: dict[Noted, tuple[Tensor, ...]]
) -> None:
    x, weight, bias = drawn(5, 4), drawn(3, 4, seed=1), drawn(3, seed=2)
    found = linear(x, {f"{name}.weight": weight, f"{name}.bias": bias}, name, TINY)
    torch.testing.assert_close(found, F.linear(x, weight, bias))
    (returned,) = noted.pop((name, "returns"))
    torch.testing.assert_close(returned, F.linear(x, weight, bias if name == "linear_qkv" else None))
    assert not noted


@pytest.mark.parametrize("name", ["linear_qkv", "linear_proj"])
def test_dora_scales_a_bias_that_the_layer_returns_and_no_other(name: str) -> None:
    x, weight, bias = drawn(5, 4), drawn(3, 4, seed=1), drawn(3, seed=2)
    down, up, magnitude = drawn(2, 4, seed=3), drawn(3, 2, seed=4), drawn(3, seed=5)
    given = {
        f"{name}.weight": weight,
        f"{name}.bias": bias,
        f"{name}.adapter.linear_in.weight": down,
        f"{name}.adapter.linear_out.weight": up,
        f"{name}.adapter.weight_magnitude": magnitude,
    }
    merged = weight + 3 * up @ down
    scale = magnitude / merged.norm(dim=1)
    right = F.linear(x, merged, bias) * scale if name == "linear_qkv" else F.linear(x, merged) * scale + bias
    found = linear(x, given, name, replace(TINY, adapters=PeftConfig(method=DORA, rank=2, alpha=6)))
    torch.testing.assert_close(found, right)


@pytest.mark.parametrize("normalization", ["LayerNorm", "RMSNorm"])
def test_norms_of_heads_are_over_a_head(normalization: str, noted: dict[Noted, tuple[Tensor, ...]]) -> None:
    x, weight, bias = drawn(5, 3, 7), drawn(7, seed=1), drawn(7, seed=2)
    model = replace(TINY, normalization=normalization)
    found = norm(x, {"n.weight": weight, "n.bias": bias}, "n", model)
    if normalization == "LayerNorm":
        right = F.layer_norm(x, (7,), weight, bias, model.epsilon)
    else:
        right = F.rms_norm(x, (7,), weight, model.epsilon)
    torch.testing.assert_close(found, right)
    (returned,) = noted.pop(("n", "returns"))
    assert torch.equal(returned, found) and not noted
