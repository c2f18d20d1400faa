"""The stand-in for Transformer Engine's grouped linear layers."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from harness.features.experts.node_grouped import GroupedLinear
from harness.probe.weights import named_parameters

CONFIG = SimpleNamespace(
    params_dtype=torch.float32,
    tensor_model_parallel_size=2,
    expert_tensor_parallel_size=2,
    expert_model_parallel_size=2,
)


def grouped(mode: str, **more: Any) -> GroupedLinear:
    """Two experts on a rank that has half of each weight, of 4 by 6."""
    groups = SimpleNamespace(expt_tp=SimpleNamespace(size=lambda: 2))
    settings = {"bias": True, "skip_bias_add": False, "mode": mode, "config": CONFIG, "pg_collection": groups}
    layer = GroupedLinear(2, 4, 6, **{**settings, **more})
    for parameter in layer.parameters():
        torch.nn.init.normal_(parameter)
    return layer


@pytest.mark.parametrize("later", [False, True])
def test_each_expert_multiplies_its_own_tokens(later: bool) -> None:
    layer, hidden = grouped("column", skip_bias_add=later), torch.randn(5, 4)
    output, biases = layer(hidden, [2, 3])
    expected = torch.cat([hidden[:2] @ layer.weight0.T, hidden[2:] @ layer.weight1.T])
    if later:
        assert biases is not None
        assert [bias.tolist() for bias in biases] == [layer.bias0.tolist(), layer.bias1.tolist()]
    else:
        expected += torch.cat([layer.bias0.expand(2, 3), layer.bias1.expand(3, 3)])
    assert torch.allclose(output, expected)


def test_an_expert_without_tokens_has_a_gradient_of_zero() -> None:
    layer = grouped("column", bias=False)
    layer(torch.randn(5, 4), [5, 0])[0].sum().backward()
    assert layer.weight1.grad is not None
    assert not layer.weight1.grad.any()


@pytest.mark.parametrize(("mode", "dim", "shape"), [("column", 0, (3, 4)), ("row", 1, (6, 2))])
def test_weights_have_the_marks_of_experts_and_of_their_split(mode: str, dim: int, shape: tuple[int, int]) -> None:
    weight: Any = grouped(mode).weight1
    assert (weight.shape, weight.partition_dim, weight.tensor_model_parallel, weight.allreduce) == (
        shape,
        dim,
        True,
        False,
    )


def test_weights_are_named_as_those_of_single_experts() -> None:
    chunk = torch.nn.Module()
    chunk.experts = torch.nn.Module()
    chunk.experts.linear_fc1 = grouped("column", bias=False)
    chunk.experts.linear_fc2 = grouped("row", bias=False)
    named = list(named_parameters(chunk, tp_rank=1, tp_size=2, ep_rank=1))
    assert [parameter.name for parameter in named] == [
        "experts.2.linear_fc1.weight",
        "experts.3.linear_fc1.weight",
        "experts.2.linear_fc2.weight",
        "experts.3.linear_fc2.weight",
    ]
    assert [parameter.shard.full for parameter in named] == [(6, 4), (6, 4), (6, 4), (6, 4)]
    assert [parameter.shard.dim for parameter in named] == [0, 0, 1, 1]
