"""What the optimizer makes of each parameter: Adam's moments after the first update, and the change of the weight, in
the optimizer's precision, by the first update and by all of them.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from harness.core.run.tensor_records import OptimizerSeen, UpdateSeen
from harness.node.probe.hooks.fingerprints import gradient_fingerprint
from harness.node.probe.model.distributed_optimizer import gather_weights
from harness.node.probe.model.groups import GLOBAL, Groups
from harness.node.probe.model.optimizer_state import MOMENTS, counted_in_norm, decay_of, held_by, whole
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
        observer.recorder.record.optimizer = self._optimizer()

    def last(self) -> None:
        """After the last step, add how much all updates changed the weights, and which the model did not get."""
        gather_weights(self.observer.chunks)
        weights, seed = self._weights(), self.observer.context.config.train.seed
        for seen, item in zip(self.observer.recorder.record.parameters, self.observer.named_parameters()):
            assert seen.update is not None  # `first` was called
            weight, stored = weights[item.name], item.parameter.detach().cpu()
            seen.update.trained = gradient_fingerprint(item, weight - self.before[item.name], seed)
            # What is not finite is left to the check of finiteness.
            same = torch.isclose(stored, weight.to(stored.dtype), rtol=0, atol=0, equal_nan=True)
            seen.update.stale = int((~same).sum())

    def _optimizer(self) -> OptimizerSeen:
        gradients, weights, moments = set(), set(), set()
        decays: dict[bool, set[float]] = {True: set(), False: set()}
        for parameter, mine in held_by(self.optimizer).items():
            # With shards, a rank may hold nothing of a parameter.
            own = -1.0 if mine.weight is None else decay_of(self.optimizer, mine.weight)
            decay = torch.tensor(own, dtype=torch.float64, device=parameter.device)
            if mine.group is not None:
                dist.all_reduce(decay, op=dist.ReduceOp.MAX, group=mine.group)
            decays[parameter.dim() > 1].add(float(decay))
            gradient = getattr(parameter, "main_grad", parameter.grad)
            gradients |= {str(gradient.dtype)} if gradient is not None else set()
            weights |= {str(mine.weight.dtype)} if mine.weight is not None else set()
            moments |= {str(mine.state[name].dtype) for name in MOMENTS if name in mine.state}
        return OptimizerSeen(
            gradients=sorted(gradients),
            weights=sorted(weights),
            moments=sorted(moments),
            matrix_decays=sorted(decays[True]),
            vector_decays=sorted(decays[False]),
        )

    def _changes(self) -> dict[str, Tensor]:
        return {name: weight - self.before[name] for name, weight in self._weights().items()}

    def _weights(self) -> dict[str, Tensor]:
        held = held_by(self.optimizer)
        weights = {}
        for item in self.observer.named_parameters():
            mine = held[item.parameter]
            weights[item.name] = whole(mine, mine.weight, item.parameter).to("cpu", torch.float64)
        return weights
