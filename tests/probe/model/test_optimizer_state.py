"""What Megatron's optimizers hold of a parameter. With shards and copies in bf16: tests/runtime and the matrices."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from megatron.core.optimizer.optimizer import Float16OptimizerWithFloat16Params

from harness.features.optimizer import node_distributed
from harness.features.optimizer.node_state import MOMENTS, Held, counted_in_norm, held_by, whole
from harness.runtime.recording.errors import UnknownNameError, absent_name
from tests.runtime.conftest import config


def adam(weight: torch.nn.Parameter) -> torch.optim.Adam:
    return torch.optim.Adam([weight], lr=0.1)


def parameter(*values: float, dtype: torch.dtype = torch.float32) -> torch.nn.Parameter:
    return torch.nn.Parameter(torch.tensor(values, dtype=dtype))


def rounding(**held: Any) -> Any:
    optimizer = object.__new__(Float16OptimizerWithFloat16Params)
    vars(optimizer).update(held)
    return optimizer


def updated(optimizer: Any, weight: torch.nn.Parameter) -> None:
    weight.grad = torch.ones_like(weight)
    optimizer.step()


def test_before_the_first_update_there_are_no_moments_and_none_are_made() -> None:
    weight = parameter(1.0, 2.0)
    inner = adam(weight)
    held = held_by(SimpleNamespace(optimizer=inner))[weight]
    assert held.weight is weight and held.state == {} and not inner.state
    assert whole(held, held.state.get("exp_avg"), weight).tolist() == [0.0, 0.0]


def test_weights_in_fp32_are_the_parameters_of_the_model() -> None:
    weight = parameter(1.0, 2.0)
    inner = adam(weight)
    updated(inner, weight)
    held = held_by(SimpleNamespace(optimizer=inner))[weight]
    first, second = (whole(held, held.state[name], weight) for name in MOMENTS)
    torch.testing.assert_close(first, torch.full((2,), 0.1))
    torch.testing.assert_close(second, torch.full((2,), 0.001))


def test_a_parameter_in_bf16_has_its_own_copy_in_fp32() -> None:
    model, copy = parameter(1.0, 2.0, dtype=torch.bfloat16), parameter(1.0, 2.0)
    inner = adam(copy)
    updated(inner, copy)
    found = held_by(rounding(optimizer=inner, float16_groups=[[model]], fp32_from_float16_groups=[[copy]]))
    assert list(found) == [model] and found[model].weight is copy
    assert whole(found[model], found[model].weight, model).dtype == torch.float32


def test_groups_of_another_name_are_missed_and_not_taken_for_none() -> None:
    with pytest.raises(AttributeError) as caught:
        held_by(rounding(optimizer=adam(parameter(1.0)), half_groups=[]))
    assert " has no megatron.core.optimizer.optimizer.Float16OptimizerWithFloat16Params.float16_groups" in absent_name(
        caught.value
    )


def test_an_optimizer_whose_groups_name_no_factor_of_decay_is_not_taken_for_one_that_decays_all(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made = SimpleNamespace(param_groups=[{"weight_decay": 0.01}])
    monkeypatch.setattr(node_distributed, "get_megatron_optimizer", lambda *args, **kwargs: made)
    kind = SimpleNamespace(bf16=False, params_dtype=torch.float32)
    chunk: Any = SimpleNamespace(config=kind, parameters=lambda: [parameter(1.0)])
    with pytest.raises(UnknownNameError, match="no group with wd_mult"):
        node_distributed.build_optimizer(config(), [chunk])
    made.param_groups[0]["wd_mult"] = 0.5
    optimizer = node_distributed.build_optimizer(config(), [chunk])
    node_distributed.build_schedule(config(), optimizer)
    assert made.param_groups[0]["weight_decay"] == 0.005


def test_a_chain_of_optimizers_holds_the_parameters_of_all() -> None:
    one, two = parameter(1.0), parameter(2.0)
    chain = SimpleNamespace(chained_optimizers=[SimpleNamespace(optimizer=adam(item)) for item in (one, two)])
    assert list(held_by(chain)) == [one, two]


def test_what_no_rank_has_is_zero() -> None:
    weight = parameter(1.0, 2.0)
    assert whole(Held(None, {}), None, weight).tolist() == [0.0, 0.0]


@pytest.mark.parametrize("name", ["get_grads_for_grad_norm", "get_main_grads_for_grad_norm"])  # from 0.19, and before
def test_the_gradients_that_the_norm_counts_are_those_that_upstream_returns(name: str) -> None:
    weights = [parameter(1.0), parameter(2.0), parameter(3.0)]
    optimizers = [SimpleNamespace(optimizer=adam(weight)) for weight in weights]
    chain = SimpleNamespace(chained_optimizers=optimizers)
    for weight, optimizer in zip(weights, optimizers):
        setattr(optimizer, name, lambda weight=weight: [weight.grad] if weight is not weights[1] else [])
    assert counted_in_norm(chain) is None  # no update took place
    for weight in weights:
        weight.grad = torch.ones_like(weight)
    assert list((counted_in_norm(chain) or {}).values()) == [True, False, True]
