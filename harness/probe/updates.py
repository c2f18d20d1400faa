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
        """Add to the records of the gradients, after step 0, what was made of them, and whether upstream's norm counts
        them.
        """
        observer, by_parameter = self.observer, held_by(self.optimizer)
        seed = observer.context.config.train.seed
        with self.groups.hidden():
            # Upstream decides by the groups that it sees, so it must see those that it sees when it trains.
            counted = counted_in_norm(self.optimizer)
        changes = self._changes()
        for parameter_seen, named in zip(observer.recorder.record.parameters, observer.named_parameters()):
            state_held = by_parameter[named.parameter]
            moments = [whole(state_held, state_held.state.get(name), named.parameter) for name in MOMENTS]
            first, second, change = (
                gradient_fingerprint(named, tensor, seed) for tensor in (*moments, changes[named.name])
            )
            parameter_seen.update = UpdateSeen(first_moment=first, second_moment=second, change=change)
            parameter_seen.in_norm = counted[named.parameter] if counted else None
        observer.recorder.record.optimizer = self._optimizer()

    def last(self) -> None:
        """Add, after the last step, how much all updates changed the weights, and which the model did not get."""
        gather_weights(self.observer.chunks)
        weights, seed = self._weights(), self.observer.context.config.train.seed
        for parameter_seen, named in zip(self.observer.recorder.record.parameters, self.observer.named_parameters()):
            assert parameter_seen.update is not None  # `first` was called
            weight, stored = weights[named.name], named.parameter.detach().cpu()
            parameter_seen.update.trained = gradient_fingerprint(named, weight - self.before[named.name], seed)
            # What is not finite is left to the check of finiteness.
            # Exact: the model's weight is the optimizer's, rounded once. Any difference is a weight that was not copied
            # or gathered back.
            same = torch.isclose(stored, weight.to(stored.dtype), rtol=0, atol=0, equal_nan=True)
            parameter_seen.update.stale = int((~same).sum())

    def _optimizer(self) -> OptimizerSeen:
        gradients, weights, moments = set(), set(), set()
        decays: dict[bool, set[float]] = {True: set(), False: set()}
        for parameter, held in held_by(self.optimizer).items():
            # With shards, a rank may hold nothing of a parameter.
            own_decay = -1.0 if held.weight is None else decay_of(self.optimizer, held.weight)
            decay = torch.tensor(own_decay, dtype=torch.float64, device=parameter.device)
            if held.group is not None:
                dist.all_reduce(decay, op=dist.ReduceOp.MAX, group=held.group)
            # Megatron decays matrices, and neither norms nor biases, which are vectors.
            decays[parameter.dim() > 1].add(float(decay))
            gradient = getattr(parameter, "main_grad", parameter.grad)
            gradients |= {str(gradient.dtype)} if gradient is not None else set()
            weights |= {str(held.weight.dtype)} if held.weight is not None else set()
            moments |= {str(held.state[name].dtype) for name in MOMENTS if name in held.state}
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
        by_parameter = held_by(self.optimizer)
        weights = {}
        for named in self.observer.named_parameters():
            held = by_parameter[named.parameter]
            weights[named.name] = whole(held, held.weight, named.parameter).to("cpu", torch.float64)
        return weights


def stored_state(observer: Observer, optimizer: Any, scheduler: Any, after: int) -> StateSeen:
    """Read what a checkpoint stores. Collective over replicas that hold shards. `after`: number of finished steps."""
    by_parameter, config = held_by(optimizer), observer.context.config
    exact = len(config.stored) > 1  # the same layout continues
    return StateSeen(
        after=after,
        parameters=[
            _parameter(named, by_parameter[named.parameter], config.train.seed, exact=exact)
            for named in observer.named_parameters()
        ],
        updates=updates_of(optimizer),
        scheduled=int(scheduler.num_steps),
        random=_random() if exact and after == config.train.save_step else "",
    )


def _parameter(named: NamedParameter, held: Held, seed: int, *, exact: bool) -> StoredParameter:
    parts = (held.weight, *(held.state.get(name) for name in MOMENTS))
    weight, first, second = (gradient_fingerprint(named, whole(held, part, named.parameter), seed) for part in parts)
    return StoredParameter(
        name=named.name,
        sharded=named.shard.dim is not None,
        weight=weight,
        first_moment=first,
        second_moment=second,
        digest=digest(*parts) if exact else "",
    )


def _random() -> str:
    """Return what `megatron.training.checkpointing.get_rng_state` saves."""
    trackers = get_cuda_rng_tracker().get_states()
    # The first item is the generator's name; the key is an array, whose repr would be abbreviated.
    _, key, *position = numpy.random.get_state()
    hashed = hashlib.sha256(repr((random.getstate(), position)).encode() + key.tobytes())
    hashed.update(digest(torch.get_rng_state(), *(trackers[name] for name in sorted(trackers))).encode())
    return hashed.hexdigest()[:16]


def digest(*tensors: Tensor | None) -> str:
    """Return a digest of the bytes of tensors; None, which this rank does not hold, is not an empty tensor."""
    hashed = hashlib.sha256()
    for tensor in tensors:
        data = b"-" if tensor is None else tensor.detach().cpu().contiguous().view(torch.uint8).numpy().tobytes()
        # With its length, since otherwise bytes could move from one tensor to the next unseen.
        hashed.update(len(data).to_bytes(8, "big") + data)
    return hashed.hexdigest()[:16]


class AdapterRecord:
    """Create it before the first step. Both methods are collective over tp, and do nothing without adapters."""

    def __init__(self, observer: Observer) -> None:
        self.observer = observer
        config, record = observer.context.config, observer.recorder.record
        self.peft, self.seed = config.model.peft, config.train.seed
        if not self.peft:
            return
        record.frozen = [self._frozen(named) for named in self._frozen_parameters()]
        record.merged = [self._merged(layer, named) for layer, named in self._adapted()] if self.peft.merges else []

    def last(self) -> None:
        """Record the frozen parameters and merged weights as they are after the last step."""
        record = self.observer.recorder.record
        if not self.peft:
            return
        gather_weights(self.observer.chunks)
        for frozen, named in zip(record.frozen, self._frozen_parameters()):
            frozen.after, frozen.gradient = digest(named.parameter), _has_gradient(named.parameter)
        for merged, (layer, named) in zip(record.merged, self._adapted()):
            merged.after = self._fingerprint(layer, named)

    def _frozen_parameters(self) -> list[NamedParameter]:
        return [named for named in self.observer.all_parameters() if not named.parameter.requires_grad]

    def _adapted(self) -> list[tuple[Any, NamedParameter]]:
        """Return each adapted layer with its own weight."""
        named = {parameter.parameter: parameter for parameter in self.observer.all_parameters()}
        layers = [layer for chunk in self.observer.chunks for layer in adapted_layers(unwrap(chunk))]
        return [(layer, named[layer.to_wrap.weight]) for layer in layers]

    def _frozen(self, named: NamedParameter) -> FrozenSeen:
        return FrozenSeen(
            name=named.name,
            sharded=named.shard.dim is not None,
            before=digest(named.parameter),
            shard=named.expert_shard,
        )

    def _merged(self, layer: Any, named: NamedParameter) -> MergedSeen:
        return MergedSeen(
            name=named.name,
            sharded=named.shard.dim is not None,
            before=self._fingerprint(layer, named),
            output_off=None if is_expert(named.name) else output_off(layer, self.seed),
            shard=named.expert_shard,
        )

    def _fingerprint(self, layer: Any, named: NamedParameter) -> Fingerprint:
        return gradient_fingerprint(named, merged_weight(layer), self.seed)


def _has_gradient(parameter: Any) -> bool:
    return any(getattr(parameter, name, None) is not None for name in ("grad", "main_grad"))
