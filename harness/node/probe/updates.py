"""What the optimizer makes of each parameter: Adam's moments after the first update, and the change of the weight, in
the optimizer's precision, by the first update and by all of them.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from harness.core.run.tensor_records import UpdateSeen
from harness.node.probe.hooks.fingerprints import gradient_fingerprint
from harness.node.probe.model.groups import GLOBAL, Groups
from harness.node.probe.model.optimizer_state import MOMENTS, counted_in_norm, held_by, whole
from harness.node.probe.observer import Observer


class Updates:
    """Create it before the first update. Every method is collective over replicas that hold shards.

    Keeps a copy of the initial weights on the CPU, 8 bytes per element.
    """

    def __init__(self, observer: Observer, optimizer: Any, groups: Groups = GLOBAL) -> None:
        self.observer, self.optimizer, self.groups = observer, optimizer, groups
        self.before = self._weights()

    def first(self) -> None:
        """After step 0, add to the records of the gradients what was made of them, and whether upstream's norm counts
        them.
        """
        observer, held = self.observer, held_by(self.optimizer)
        seed = observer.context.config.train.seed
        with self.groups.hidden():
            counted = counted_in_norm(self.optimizer)
        changes = self._changes()
        for seen, item in zip(observer.recorder.record.parameters, observer.named_parameters()):
            mine = held[item.parameter]
            moments = [whole(mine, mine.state.get(name), item.parameter) for name in MOMENTS]
            first, second, change = (
                gradient_fingerprint(item, tensor, seed) for tensor in (*moments, changes[item.name])
            )
            seen.update = UpdateSeen(first_moment=first, second_moment=second, change=change)
            seen.in_norm = counted[item.parameter] if counted else None

    def last(self) -> None:
        """After the last step, add how much all updates changed the weights."""
        changes, seed = self._changes(), self.observer.context.config.train.seed
        for seen, item in zip(self.observer.recorder.record.parameters, self.observer.named_parameters()):
            assert seen.update is not None  # `first` was called
            seen.update.trained = gradient_fingerprint(item, changes[item.name], seed)

    def _changes(self) -> dict[str, Tensor]:
        return {name: weight - self.before[name] for name, weight in self._weights().items()}

    def _weights(self) -> dict[str, Tensor]:
        held = held_by(self.optimizer)
        weights = {}
        for item in self.observer.named_parameters():
            mine = held[item.parameter]
            weights[item.name] = whole(mine, mine.weight, item.parameter).to("cpu", torch.float64)
        return weights
