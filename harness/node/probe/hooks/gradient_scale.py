"""Measures at step 0 what Megatron multiplies reduced gradients by, separately for experts, which DDP holds apart.

DDP scales before it reduces, and finalize_model_grads scales afterwards with `scale_gradients` of each model chunk
(DistributedDataParallel, megatron-core 0.12 to 0.19). The second factor is measured on the gradients, not taken from
the argument.
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
        self.factors = dict.fromkeys(self.groups, 1.0)
        self.upstream: Callable[[Any], None] = chunk.scale_gradients
        chunk.scale_gradients = self._scale

    def _scale(self, factor: Any) -> None:
        if not self.state.first_step:
            self.upstream(factor)
            return
        before = {name: _norm(group) for name, group in self.groups.items()}
        self.upstream(factor)
        for name, norm in before.items():
            # Gradients that are all 0 show no factor.
            self.factors[name] *= _norm(self.groups[name]) / norm if norm else float(factor)

    def seen(self) -> GradientScale:
        """Both factors together."""
        found = {name: self._reduced(group[0]) * self.factors[name] for name, group in self.groups.items() if group}
        return GradientScale(chunk=self.number, dense=found.get("dense"), experts=found.get("experts"))

    def _reduced(self, parameter: Tensor) -> float:
        """The factor of DDP's reduction: before it, and within it if the collective averages."""
        buffers = (*self.chunk.buffers, *self.chunk.expert_parallel_buffers)
        buffer = next(one for one in buffers if any(other is parameter for other in one.params))
        averages = self.chunk.ddp_config.average_in_collective
        return float(buffer.gradient_scaling_factor) / (buffer.data_parallel_group.size() if averages else 1)


def _norm(parameters: Iterable[Tensor]) -> float:
    squares = [one.main_grad.double().square().sum() for one in parameters]  # type: ignore[attr-defined]
    return math.sqrt(float(torch.stack(squares).sum())) if squares else 0.0
