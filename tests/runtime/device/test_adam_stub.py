from __future__ import annotations

import copy
from typing import Any

import pytest
import torch

from harness.features.optimizer.node_adam_stub import FusedAdam

SETTINGS: dict[str, Any] = {"lr": 0.1, "betas": (0.9, 0.95), "eps": 1e-6, "weight_decay": 0.1}


def trained(kind: type[torch.optim.AdamW], steps: int, before: tuple[Any, Any] | None = None) -> tuple[Any, Any]:
    """Weights, and the optimizer's state as it is saved, after further steps."""
    weights = [torch.nn.Parameter(torch.arange(4.0)), torch.nn.Parameter(torch.ones(2, 2))]
    groups = [{"params": weights[:1], "weight_decay": 0.0}, {"params": weights[1:]}]
    optimizer = kind(groups, **SETTINGS)
    if before is not None:
        for weight, value in zip(weights, before[0]):
            weight.data.copy_(value)
        optimizer.load_state_dict(before[1])
    for _ in range(steps):
        for weight in weights:
            weight.grad = weight.detach().sin()
        optimizer.step()
    return [weight.detach().clone() for weight in weights], copy.deepcopy(optimizer.state_dict())


def test_it_computes_what_adamw_computes() -> None:
    ours, torchs = trained(FusedAdam, 3)[0], trained(torch.optim.AdamW, 3)[0]
    assert all(torch.equal(one, other) for one, other in zip(ours, torchs, strict=True))


def test_steps_are_counted_in_groups_and_not_in_the_state() -> None:
    _, saved = trained(FusedAdam, 2)
    assert [group["step"] for group in saved["param_groups"]] == [2, 2]
    assert [set(held) for held in saved["state"].values()] == [{"exp_avg", "exp_avg_sq"}] * 2


def test_it_continues_from_a_saved_state() -> None:
    whole, half = trained(FusedAdam, 3), trained(FusedAdam, 1)
    continued = trained(FusedAdam, 2, half)
    assert all(torch.equal(one, other) for one, other in zip(whole[0], continued[0], strict=True))
    assert continued[1]["param_groups"] == whole[1]["param_groups"]


def test_coupled_weight_decay_is_refused() -> None:
    FusedAdam([torch.nn.Parameter(torch.ones(1))], adam_w_mode=True, **SETTINGS)
    with pytest.raises(NotImplementedError, match="decouples weight decay"):
        FusedAdam([torch.nn.Parameter(torch.ones(1))], adam_w_mode=False, **SETTINGS)


def test_a_group_without_parameters_counts_nothing() -> None:
    optimizer = FusedAdam([{"params": [torch.nn.Parameter(torch.ones(1))]}, {"params": []}], **SETTINGS)
    optimizer.param_groups[0]["params"][0].grad = torch.ones(1)
    optimizer.step()
    assert ["step" in group for group in optimizer.param_groups] == [True, False]
