"""Clipping and Adam against torch's."""

from __future__ import annotations

import pytest
import torch

from harness.oracle.fields import Optimizer
from harness.oracle.optimizer import Adam, clip_coefficient, gradient_norm

SHAPES = {"matrix": (3, 4), "norm": (4,)}


def drawn(seed: int) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return {name: torch.randn(shape, generator=generator, dtype=torch.float64) for name, shape in SHAPES.items()}


@pytest.mark.parametrize(("decoupled", "torchs"), [(True, torch.optim.AdamW), (False, torch.optim.Adam)])
def test_four_updates_are_those_of_torch_with_norms_that_do_not_decay(decoupled: bool, torchs: type) -> None:
    settings = Optimizer(beta1=0.8, beta2=0.95, epsilon=1e-6, decoupled=decoupled)
    weights = drawn(0)
    theirs = {name: weight.clone().requires_grad_() for name, weight in weights.items()}
    groups = [
        {"params": [theirs["matrix"]], "weight_decay": 0.3},
        {"params": [theirs["norm"]], "weight_decay": 0.0},
    ]
    other = torchs(groups, lr=0.1, betas=(0.8, 0.95), eps=1e-6)
    adam, begin = Adam.of(settings, weights), {name: weight.clone() for name, weight in weights.items()}
    total = {name: torch.zeros_like(weight) for name, weight in weights.items()}
    for step in range(4):
        gradients = drawn(step + 1)
        for name, change in adam.update(weights, gradients, 0.1, 0.3).items():
            total[name] += change
        for name, weight in theirs.items():
            weight.grad = gradients[name]
        other.step()
    for name, weight in weights.items():
        torch.testing.assert_close(weight, theirs[name].detach(), rtol=1e-12, atol=1e-14)
        torch.testing.assert_close(begin[name] + total[name], weight, rtol=1e-12, atol=1e-14)
        torch.testing.assert_close(adam.first[name], other.state[theirs[name]]["exp_avg"], rtol=1e-12, atol=1e-14)
        torch.testing.assert_close(adam.second[name], other.state[theirs[name]]["exp_avg_sq"], rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("most", [0.5, 3.0, 100.0])
def test_norm_and_clipping_are_those_of_torch(most: float) -> None:
    gradients = drawn(5)
    weights = [torch.zeros_like(gradient).requires_grad_() for gradient in gradients.values()]
    for weight, gradient in zip(weights, gradients.values()):
        weight.grad = gradient.clone()
    norm = torch.nn.utils.clip_grad_norm_(weights, most)
    assert gradient_norm(gradients) == pytest.approx(float(norm), rel=1e-14)
    for weight, gradient in zip(weights, gradients.values()):
        torch.testing.assert_close(gradient * clip_coefficient(float(norm), most), weight.grad, rtol=1e-13, atol=0)


def test_without_a_limit_nothing_is_clipped() -> None:
    assert clip_coefficient(1e9, 0.0) == 1.0
