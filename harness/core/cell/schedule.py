"""The learning rate and the weight decay of every step of a cell."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from harness.core.cell.config import CellConfig, TrainConfig
from harness.core.cell.upstream_config import weight_decay

KEYS = (  # of TrainConfig, with the names of upstream's arguments
    *("lr_decay_style", "lr_decay_iters", "min_lr", "lr_warmup_iters", "lr_warmup_fraction", "lr_warmup_init"),
    *("lr_wsd_decay_iters", "lr_wsd_decay_style"),
    *("start_weight_decay", "end_weight_decay", "weight_decay_incr_style"),
)


def changed_keys(train: TrainConfig) -> dict[str, Any]:
    """Return the keys of the schedule that do not have their defaults."""
    plain = TrainConfig()
    return {name: value for name in KEYS if (value := getattr(train, name)) != getattr(plain, name)}


@dataclass(frozen=True, kw_only=True)
class Schedule:
    """Learning rate and decay by step, as Megatron-LM core_v0.19.0, OptimizerParamScheduler, documents.

    The rate rises from `least_warm` to `most` in `warm` steps, and falls to `least` until step `length`. Upstream
    counts samples, of which every step has as many.
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
    decay_length: float = 1  # steps until the decay is `decay_end`

    @classmethod
    def of(cls, config: CellConfig) -> Schedule:
        train = config.train
        length = train.lr_decay_iters or train.steps
        decay = weight_decay(config)
        return cls(
            most=train.lr,
            least=train.min_lr,
            least_warm=train.lr_warmup_init,
            warm=train.lr_warmup_iters if train.lr_warmup_fraction is None else train.lr_warmup_fraction * length,
            length=length,
            style=train.lr_decay_style,
            last=train.lr_wsd_decay_iters or 0,
            last_style=train.lr_wsd_decay_style,
            decay=decay if train.start_weight_decay is None else train.start_weight_decay,
            decay_end=decay if train.end_weight_decay is None else train.end_weight_decay,
            decay_style=train.weight_decay_incr_style,
            decay_length=train.steps,  # not `length`: megatron.training.training.get_optimizer_param_scheduler
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
        """Return the decay of a step, from 0: from `decay` to `decay_end` over `decay_length` steps."""
        if self.decay_style == "constant" or step > self.decay_length:
            return self.decay_end
        done = step / self.decay_length
        share = done if self.decay_style == "linear" else 0.5 * (1 - math.cos(math.pi * done))
        return self.decay + (self.decay_end - self.decay) * share


def same_rate(value: float, expected: float) -> bool:
    """Return whether two rates or decays are the same but for rounding, of counts in samples or in steps.

    A cosine near its end is a difference of nearly equal numbers.
    """
    return math.isclose(value, expected, rel_tol=1e-9, abs_tol=1e-15)
