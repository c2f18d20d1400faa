"""The first update of the optimizer, per parameter: Adam's moments, and the change of the weight in its precision."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from harness.core.run.tensor_records import UpdateSeen
from harness.node.probe.hooks.fingerprints import gradient_fingerprint
from harness.node.probe.model.groups import GLOBAL, Groups
from harness.node.probe.model.optimizer_state import MOMENTS, counted_in_norm, held_by, whole
from harness.node.probe.observer import Observer


class FirstUpdate:
    """Create it before the update of step 0, then call `record`. Both are collective over replicas that hold shards.

    The weights are copied to the CPU meanwhile.
    """

    def __init__(self, observer: Observer, optimizer: Any, groups: Groups = GLOBAL) -> None:
        self.observer, self.optimizer, self.groups = observer, optimizer, groups
        self.before = self._weights()

    def record(self) -> None:
        """Add to the records of the gradients what the update made of them, and whether upstream's norm counts them."""
        observer, held = self.observer, held_by(self.optimizer)
        seed = observer.context.config.train.seed
        with self.groups.hidden():
            counted = counted_in_norm(self.optimizer)
        changes = {name: weight - self.before[name] for name, weight in self._weights().items()}
        for seen, item in zip(observer.recorder.record.parameters, observer.named_parameters()):
            mine = held[item.parameter]
            moments = [whole(mine, mine.state.get(name), item.parameter) for name in MOMENTS]
            first, second, change = (
                gradient_fingerprint(item, tensor, seed) for tensor in (*moments, changes[item.name])
            )
            seen.update = UpdateSeen(first_moment=first, second_moment=second, change=change)
            seen.in_norm = counted[item.parameter] if counted else None

    def _weights(self) -> dict[str, Tensor]:
        held = held_by(self.optimizer)
        weights = {}
        for item in self.observer.named_parameters():
            mine = held[item.parameter]
            weights[item.name] = whole(mine, mine.weight, item.parameter).to("cpu", torch.float64)
        return weights
