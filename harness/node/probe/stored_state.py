"""What a checkpoint of training holds, as it is in the process: weights, moments, schedule, random generators."""

from __future__ import annotations

import hashlib
import random
from typing import Any

import numpy
import torch
from megatron.core.tensor_parallel.random import get_cuda_rng_tracker
from torch import Tensor

from harness.core.run.tensor_records import StateSeen, StoredParameter
from harness.node.probe.hooks.fingerprints import gradient_fingerprint
from harness.node.probe.model.optimizer_state import MOMENTS, Held, held_by, updates_of, whole
from harness.node.probe.observer import Observer
from harness.node.probe.weights import NamedParameter


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
