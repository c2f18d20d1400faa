"""Clipping, Adam with decoupled decay, and the schedules of the learning rate and the decay."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from harness.core.cell.config import CellConfig
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


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """Learning rate and decay of each step (Megatron-LM core_v0.19.0, OptimizerParamScheduler), in steps.

    The rate rises from `least_warm` to `most` in `warm` steps, and falls to `least` until step `length`.
    """

    most: float
    least: float = 0.0
    least_warm: float = 0.0
    warm: float = 0
    length: float = 1
    style: str = "constant"
    last: float = 0  # WSD: steps of the decay at the end
    last_style: str = "exponential"
    decay: float = 0.01
    decay_end: float = 0.01
    decay_style: str = "constant"  # then `decay_end` is `decay`

    @classmethod
    def of(cls, config: CellConfig, settings: Optimizer) -> Schedule:
        """From the arguments of upstream's trainer, which by default train at a constant rate here."""

        def number(name: str, otherwise: float) -> float:
            argument = config.args.of(name)
            return float(argument.words[0]) if argument else otherwise

        length = number("lr_decay_iters", config.train.steps)
        fraction = number("lr_warmup_fraction", 0.0)
        return cls(
            most=settings.lr,
            least=number("min_lr", 0.0),
            least_warm=number("lr_warmup_init", 0.0),
            warm=fraction * length if fraction else number("lr_warmup_iters", 0),
            length=max(length, 1),
            style=config.args.text("lr_decay_style") or "constant",
            last=number("lr_wsd_decay_iters", 0),
            last_style=config.args.text("lr_wsd_decay_style") or "exponential",
            decay=number("start_weight_decay", settings.decay),
            decay_end=number("end_weight_decay", settings.decay),
            decay_style=config.args.text("weight_decay_incr_style") or "constant",
        )

    def rate(self, step: int) -> float:
        """Return the learning rate of a step, from 0."""
        # Including the step at the end of the warm-up: `_share` would divide by 0 where the schedule has no step after
        # it.
        if self.warm > 0 and step <= self.warm:
            return self.least_warm + (self.most - self.least_warm) * step / self.warm
        if self.style == "constant":
            return self.most
        if step > self.length:
            return self.least
        if self.style == "inverse-square-root":
            return max(self.least, self.most * math.sqrt(max(self.warm, 1) / max(step, 1)))
        return self.least + (self.most - self.least) * self._share(step)

    def _share(self, step: int) -> float:
        """Of the way from `most` to `least`, what is left: 1 to 0."""
        done = (step - self.warm) / (self.length - self.warm)
        if self.style != "WSD":
            return {"linear": 1 - done, "cosine": 0.5 * (1 + math.cos(math.pi * done))}[self.style]
        begin = self.length - self.last
        if step <= begin:
            return 1.0
        done = (step - begin) / self.last
        return {
            "linear": 1 - done,
            "cosine": 0.5 * (1 + math.cos(math.pi * done)),
            # From 1 to 0, although a halving ends at one half: upstream subtracts and doubles (get_lr, WSD).
            "exponential": 2 * math.pow(0.5, done) - 1,
            "minus_sqrt": 1 - math.sqrt(done),
        }[self.last_style]

    def weight_decay(self, step: int) -> float:
        """Return the decay of a step, from 0: from `decay` to `decay_end` over `length` steps."""
        if step > self.length:
            return self.decay_end
        done = step / self.length
        share = done if self.decay_style == "linear" else 0.5 * (1 - math.cos(math.pi * done))
        return self.decay + (self.decay_end - self.decay) * share
