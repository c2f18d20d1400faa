from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from harness.core.run.records import GradientScale
from harness.probe.hooks.layers import PassState, ScaleRecorder

DENSE, EXPERT = "decoder.final_layernorm.weight", "decoder.layers.0.mlp.experts.0.linear_fc1.weight"


class Chunk:
    """A model chunk in DDP, as far as the recorder reads it."""

    def __init__(self, *, names: tuple[str, ...] = (DENSE, EXPERT), averages: bool = False) -> None:
        self.parameters = {name: nn.Parameter(torch.ones(3)) for name in names}
        for parameter in self.parameters.values():
            parameter.main_grad = torch.full((3,), 2.0)  # type: ignore[attr-defined]
        self.ddp_config = SimpleNamespace(average_in_collective=averages)
        self.buffers = [self._buffer(DENSE, 0.5)]
        self.expert_parallel_buffers = [self._buffer(EXPERT, 0.25)]

    def _buffer(self, name: str, factor: float) -> Any:
        group = SimpleNamespace(size=lambda: 4)
        params = [one for other, one in self.parameters.items() if other == name]
        return SimpleNamespace(params=params, gradient_scaling_factor=factor, data_parallel_group=group)

    def named_parameters(self) -> Iterator[tuple[str, Tensor]]:
        return iter(self.parameters.items())

    def scale_gradients(self, factor: Any) -> None:
        for buffer in (*self.buffers, *self.expert_parallel_buffers):
            for parameter in buffer.params:
                parameter.main_grad *= factor


def recorded(chunk: Chunk, act: Callable[[Any], None], state: PassState | None = None) -> GradientScale:
    recorder = ScaleRecorder(chunk, 1, state or PassState(leg="training", step=0))
    act(chunk)
    return recorder.seen()


@pytest.mark.parametrize(("averages", "share"), [(False, 1.0), (True, 0.25)])
def test_the_factors_in_and_after_the_reduction(averages: bool, share: float) -> None:
    found = recorded(Chunk(averages=averages), lambda chunk: chunk.scale_gradients(torch.tensor(1 / 144)))
    assert found.chunk == 1
    assert math.isclose(found.dense or 0, 0.5 * share / 144, rel_tol=1e-6)
    assert math.isclose(found.experts or 0, 0.25 * share / 144, rel_tol=1e-6)


def test_what_upstream_does_counts_not_what_it_is_told() -> None:
    chunk = Chunk()
    chunk.expert_parallel_buffers, held = [], chunk.expert_parallel_buffers

    def act(chunk: Any) -> None:
        chunk.scale_gradients(1 / 144)
        chunk.expert_parallel_buffers = held

    found = recorded(chunk, act)
    assert math.isclose(found.dense or 0, 0.5 / 144, rel_tol=1e-6)
    assert found.experts == 0.25


def test_what_is_done_to_gradients_afterwards_counts_too() -> None:
    def act(chunk: Any) -> None:
        chunk.scale_gradients(1 / 144)
        chunk.parameters[EXPERT].main_grad *= 3.0

    found = recorded(Chunk(), act)
    assert math.isclose(found.experts or 0, 3 * 0.25 / 144, rel_tol=1e-6)
    assert math.isclose(found.dense or 0, 0.5 / 144, rel_tol=1e-6)


def test_gradients_that_are_not_scaled_have_the_factor_of_their_reduction() -> None:
    assert recorded(Chunk(names=(DENSE,)), lambda chunk: None) == GradientScale(chunk=1, dense=0.5)


def test_gradients_of_zero_have_the_factor_that_upstream_is_given() -> None:
    chunk = Chunk(names=(EXPERT,))
    chunk.parameters[EXPERT].main_grad.zero_()  # type: ignore[attr-defined]
    assert recorded(chunk, lambda chunk: chunk.scale_gradients(0.5)) == GradientScale(chunk=1, experts=0.125)


def test_later_steps_are_not_measured() -> None:
    found = recorded(Chunk(), lambda chunk: chunk.scale_gradients(0.1), PassState(leg="training", step=1))
    assert (found.dense, found.experts) == (0.5, 0.25)
