"""Measures at step 0 what Megatron multiplies reduced gradients by, separately for experts, which DDP holds apart.

DDP scales before it reduces, and finalize_model_grads scales afterwards with `scale_gradients` of each model chunk
(DistributedDataParallel, megatron-core 0.12 to 0.19), as the last thing that it does to gradients. The second factor is
measured on the gradients that the optimizer gets, not taken from the argument.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

from harness.core.run.records import GradientScale
from harness.node.probe.hooks.layers import PassState
from harness.node.probe.weights import is_expert


class ScaleRecorder:
    """Wraps `scale_gradients` of a model chunk; changes no values."""

    def __init__(self, chunk: Any, number: int, state: PassState) -> None:
        """`chunk`: a DDP module."""
        self.chunk, self.number, self.state = chunk, number, state
        named = [(name, one) for name, one in chunk.named_parameters() if one.requires_grad]
        self.groups = {
            "dense": [one for name, one in named if not is_expert(name)],
            "experts": [one for name, one in named if is_expert(name)],
        }
        self.before: dict[str, float] = {}  # norms of gradients that upstream has not scaled yet
        self.given = 1.0
        self.upstream: Callable[[Any], None] = chunk.scale_gradients
        chunk.scale_gradients = self._scale

    def _scale(self, factor: Any) -> None:
        if self.state.first_step:
            self.before = self.before or {name: _norm(group) for name, group in self.groups.items()}
            self.given *= float(factor)
        self.upstream(factor)

    def seen(self) -> GradientScale:
        """Both factors together, as the gradients are now."""
        found = {name: self._reduced(group[0]) * self._scaled(name) for name, group in self.groups.items() if group}
        return GradientScale(chunk=self.number, dense=found.get("dense"), experts=found.get("experts"))

    def _scaled(self, name: str) -> float:
        """The factor of a group since its reduction; that which upstream was given if its gradients are all 0."""
        norm = self.before.get(name)
        return _norm(self.groups[name]) / norm if norm else self.given

    def _reduced(self, parameter: Tensor) -> float:
        """The factor of DDP's reduction: before it, and within it if the collective averages."""
        buffers = (*self.chunk.buffers, *self.chunk.expert_parallel_buffers)
        buffer = next(one for one in buffers if any(other is parameter for other in one.params))
        averages = self.chunk.ddp_config.average_in_collective
        return float(buffer.gradient_scaling_factor) / (buffer.data_parallel_group.size() if averages else 1)


def _norm(parameters: Iterable[Tensor]) -> float:
    squares = [one.main_grad.double().square().sum() for one in parameters]  # type: ignore[attr-defined]
    return math.sqrt(float(torch.stack(squares).sum())) if squares else 0.0
