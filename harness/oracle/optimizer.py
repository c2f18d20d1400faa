"""Clipping, and Adam with decoupled decay. Rates and decays by step: core/cell/schedule.py."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from harness.oracle.fields import Optimizer

CLIP_EPSILON = 1e-6  # clip_grad_by_total_norm_fp32


def gradient_norm(gradients: Mapping[str, Tensor]) -> float:
    """Return the Euclidean norm of all gradients together."""
    return float(torch.stack([gradient.square().sum() for gradient in gradients.values()]).sum().sqrt())


def clip_coefficient(norm: float, most: float) -> float:
    """Return the factor of all gradients: at most 1, and most / (norm + 1e-6) (arXiv 1211.5063). `most` 0: 1.

    Megatron-LM core_v0.19.0, clip_grad_by_total_norm_fp32.
    """
    return min(1.0, most / (norm + CLIP_EPSILON)) if most > 0 else 1.0


@dataclass
class Adam:
    """Adam (arXiv 1412.6980), by default with decoupled decay (AdamW, arXiv 1711.05101, algorithm 2).

    Weights of one dimension, norms and biases, do not decay (Megatron-LM core_v0.19.0,
    get_standard_config_overrides).
    """

    settings: Optimizer
    first: dict[str, Tensor]  # moments by weight
    second: dict[str, Tensor]
    updates: int = 0

    @classmethod
    def of(cls, settings: Optimizer, weights: Mapping[str, Tensor]) -> Adam:
        first, second = ({name: torch.zeros_like(weight) for name, weight in weights.items()} for _ in range(2))
        return cls(settings, first, second)

    def update(
        self, weights: Mapping[str, Tensor], gradients: Mapping[str, Tensor], lr: float, decay: float
    ) -> dict[str, Tensor]:
        """Change the weights in place by clipped gradients; returns how much the stored weights changed.

        m = b1 m + (1 - b1) g; v = b2 v + (1 - b2) g^2; the n-th update is -lr (m / (1 - b1^n)) / (sqrt(v / (1 - b2^n))
        + eps) - lr decay w. Without decoupling decay w is added to g instead.
        """
        given, changes = self.settings, {}
        self.updates += 1
        for name, weight in weights.items():
            old, gradient, first, second = weight.detach(), gradients[name], self.first[name], self.second[name]
            rate = decay if weight.dim() > 1 else 0.0
            if not given.decoupled:
                gradient = gradient + rate * old
            first.mul_(given.beta1).add_((1 - given.beta1) * gradient)
            second.mul_(given.beta2).add_((1 - given.beta2) * gradient.square())
            mean = first / (1 - given.beta1**self.updates)
            spread = (second / (1 - given.beta2**self.updates)).sqrt() + given.epsilon
            changes[name] = -lr * mean / spread - (lr * rate * old if given.decoupled else 0.0)
        with torch.no_grad():
            for name, weight in weights.items():
                old = weight.clone()
                weight += changes[name]
                changes[name] = weight - old  # a small change of a large weight is rounded
        return changes
