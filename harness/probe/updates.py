"""What training makes of parameters: updates, states of checkpoints, weights that adapters leave alone."""

from __future__ import annotations

import hashlib
import random
from typing import Any

import numpy
import torch
import torch.distributed as dist
from megatron.core.tensor_parallel.random import get_cuda_rng_tracker
from torch import Tensor

from harness.core.run.tensor_records import (
    Fingerprint,
    FrozenSeen,
    MergedSeen,
    OptimizerSeen,
    StateSeen,
    StoredParameter,
    UpdateSeen,
)
from harness.features.adapters.node_adapters import adapted_layers, merged_weight, output_off
from harness.features.optimizer.node_distributed import gather_weights
from harness.features.optimizer.node_state import MOMENTS, Held, counted_in_norm, decay_of, held_by, updates_of, whole
from harness.probe.hooks.fingerprints import gradient_fingerprint
from harness.probe.model.gpt import unwrap
from harness.probe.model.groups import GLOBAL, Groups
from harness.probe.observer import Observer
from harness.probe.weights import NamedParameter, is_expert


# What the optimizer makes of each parameter: Adam's moments after the first update, and the change of the weight, in
# the optimizer's precision, by the first update and by all of them.
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


def stored_state(observer: Observer, optimizer: Any, scheduler: Any, after: int) -> StateSeen:
    """Read it. Collective over replicas that hold shards. `after`: number of finished steps."""
    held, config = held_by(optimizer), observer.context.config
    exact = len(config.stored) > 1  # the same layout continues
    return StateSeen(
        after=after,
        parameters=[
            _parameter(item, held[item.parameter], config.train.seed, exact=exact)
            for item in observer.named_parameters()
        ],
        updates=updates_of(optimizer),
        scheduled=int(scheduler.num_steps),
        random=_random() if exact and after == config.train.save_step else "",
    )


def _parameter(item: NamedParameter, held: Held, seed: int, *, exact: bool) -> StoredParameter:
    parts = (held.weight, *(held.state.get(name) for name in MOMENTS))
    weight, first, second = (gradient_fingerprint(item, whole(held, part, item.parameter), seed) for part in parts)
    return StoredParameter(
        name=item.name,
        sharded=item.shard.dim is not None,
        weight=weight,
        first_moment=first,
        second_moment=second,
        digest=digest(*parts) if exact else "",
    )


def _random() -> str:
    """What `megatron.training.checkpointing.get_rng_state` saves."""
    trackers = get_cuda_rng_tracker().get_states()
    _, key, *position = numpy.random.get_state()
    found = hashlib.sha256(repr((random.getstate(), position)).encode() + key.tobytes())
    found.update(digest(torch.get_rng_state(), *(trackers[name] for name in sorted(trackers))).encode())
    return found.hexdigest()[:16]


def digest(*tensors: Tensor | None) -> str:
    """Of the bytes of tensors; None, which this rank does not hold, is not an empty tensor."""
    found = hashlib.sha256()
    for tensor in tensors:
        data = b"-" if tensor is None else tensor.detach().cpu().contiguous().view(torch.uint8).numpy().tobytes()
        found.update(len(data).to_bytes(8, "big") + data)
    return found.hexdigest()[:16]


class AdapterRecord:
    """Create it before the first step. Both methods are collective over tp, and do nothing without adapters."""

    def __init__(self, observer: Observer) -> None:
        self.observer = observer
        config, record = observer.context.config, observer.recorder.record
        self.peft, self.seed = config.model.peft, config.train.seed
        if not self.peft:
            return
        record.frozen = [self._frozen(item) for item in self._frozen_parameters()]
        record.merged = [self._merged(layer, item) for layer, item in self._adapted()] if self.peft.merges else []

    def last(self) -> None:
        """After the last step."""
        record = self.observer.recorder.record
        if not self.peft:
            return
        gather_weights(self.observer.chunks)
        for seen, item in zip(record.frozen, self._frozen_parameters()):
            seen.after, seen.gradient = digest(item.parameter), _has_gradient(item.parameter)
        for merged, (layer, item) in zip(record.merged, self._adapted()):
            merged.after = self._fingerprint(layer, item)

    def _frozen_parameters(self) -> list[NamedParameter]:
        return [item for item in self.observer.all_parameters() if not item.parameter.requires_grad]

    def _adapted(self) -> list[tuple[Any, NamedParameter]]:
        """Each adapted layer with its own weight."""
        named = {item.parameter: item for item in self.observer.all_parameters()}
        layers = [layer for chunk in self.observer.chunks for layer in adapted_layers(unwrap(chunk))]
        return [(layer, named[layer.to_wrap.weight]) for layer in layers]

    def _frozen(self, item: NamedParameter) -> FrozenSeen:
        return FrozenSeen(
            name=item.name,
            sharded=item.shard.dim is not None,
            before=digest(item.parameter),
            shard=item.expert_shard,
        )

    def _merged(self, layer: Any, item: NamedParameter) -> MergedSeen:
        return MergedSeen(
            name=item.name,
            sharded=item.shard.dim is not None,
            before=self._fingerprint(layer, item),
            output_off=None if is_expert(item.name) else output_off(layer, self.seed),
            shard=item.expert_shard,
        )

    def _fingerprint(self, layer: Any, item: NamedParameter) -> Fingerprint:
        return gradient_fingerprint(item, merged_weight(layer), self.seed)


def _has_gradient(parameter: Any) -> bool:
    return any(getattr(parameter, name, None) is not None for name in ("grad", "main_grad"))
