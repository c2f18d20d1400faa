"""How far rounding may move weights: what the optimizer makes of gradients moved one way, and of those moved the other.

Adam's updates are about the signs of gradients. Where rounding moves a gradient by as much as it is, one direction may
keep every sign and the other turn most, and each is as likely. So a single training in the cell's dtype shows by chance
how far another one may be. The bias of a convolution in a Mamba layer, half of whose channels have gradients a 400th of
the others', was off by 0.06 to 0.48 of its change in seven bf16 trainings that differ by rounding alone.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from harness.core.run.records import UpdateApart
from harness.oracle.optimizer import Adam
from harness.oracle.train import Oracle

_WAYS = (1.0, -1.0)
_STORED = torch.float32  # weights and moments of ranks' optimizers, of a bf16 model too: a small change is rounded


class BothWays:
    """Two optimizers: one gets the gradients that rounding moved, the other those moved as far the other way."""

    def __init__(self, oracle: Oracle) -> None:
        """`oracle`: in float64, before its first step."""
        self.oracle = oracle
        self.weights = [{name: weight.to(_STORED) for name, weight in oracle.trained.items()} for _ in _WAYS]
        self.adams = [Adam.of(oracle.adam.settings, weights) for weights in self.weights]
        self.first: dict[str, float] = {}

    def add(self, exact: Mapping[str, Tensor], rounded: Mapping[str, Tensor]) -> None:
        """The clipped gradients of the oracle's last step."""
        step = self.oracle.seen.steps[-1]
        for way, adam, weights in zip(_WAYS, self.adams, self.weights):
            moved = {name: (own + way * (rounded[name] - own)).to(_STORED) for name, own in exact.items()}
            adam.update(weights, moved, step.learning_rate, step.weight_decay)
        if not self.first:
            self.first = self._apart({name: seen.change for name, seen in self.oracle.seen.parameters.items()})

    def apart(self) -> dict[str, UpdateApart]:
        """Of every weight, after all steps."""
        last = self._apart({name: seen.trained for name, seen in self.oracle.seen.parameters.items()})
        return {name: UpdateApart(change=self.first[name], trained=last[name]) for name in last}

    def _apart(self, changes: Mapping[str, Tensor]) -> dict[str, float]:
        """Return the larger distance of a weight from the oracle's, relative to its change."""
        found = {}
        for name, change in changes.items():
            right, scale = self.oracle.trained[name], float(change.norm())
            # A weight that does not change has no scale; any distance then is one from zero.
            found[name] = max(float((weights[name] - right).norm()) for weights in self.weights) / (scale or 1.0)
        return found
