"""A layer in torch's reentrant checkpoint, on which upstream's is modelled."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import torch
from torch.utils.checkpoint import checkpoint

from harness.core.cell.config import CellConfig
from harness.core.cell.layout import Layout
from harness.features.recompute.node_recompute import recomputing
from harness.probe.hooks.layers import PassState, Recomputed

CONFIG = CellConfig(layout=Layout(), data_path="reference", recompute="full")


class _Layer(torch.nn.Linear):
    """Records, for each of its forwards, whether it is recomputed and the position's micro-batch."""

    def __init__(self, state: PassState) -> None:
        super().__init__(2, 2)
        self.state = state
        self.seen: list[tuple[bool, int]] = []

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        self.seen.append((recomputing(), self.state.micro_batch))
        return super().forward(states)


def _watched(config: CellConfig) -> tuple[_Layer, PassState, Recomputed]:
    position = PassState()
    layer = _Layer(position)
    chunk: Any = SimpleNamespace(decoder=SimpleNamespace(layers=[layer]))
    context: Any = SimpleNamespace(config=config)
    return layer, position, Recomputed([chunk], context, position)


def _forward(layer: _Layer, state: PassState, micro_batch: int) -> torch.Tensor:
    state.micro_batch = micro_batch
    made: torch.Tensor = checkpoint(layer, torch.ones(1, 2, requires_grad=True), use_reentrant=True)
    return made.sum()


def test_backward_finds_the_micro_batch_of_the_forward_although_the_pipeline_is_ahead() -> None:
    layer, position, _ = _watched(CONFIG)
    first, second = _forward(layer, position, 0), _forward(layer, position, 1)
    first.backward()  # type: ignore[no-untyped-call]
    assert position.micro_batch == 1
    third = _forward(layer, position, 2)
    second.backward()  # type: ignore[no-untyped-call]
    third.backward()  # type: ignore[no-untyped-call]
    assert [number for again, number in layer.seen if not again] == [0, 1, 2]
    assert [number for again, number in layer.seen if again] == [0, 1, 2]
    assert position.micro_batch == 2


def test_a_pass_without_a_backward_does_not_affect_the_next_one() -> None:
    layer, position, recomputed = _watched(CONFIG)
    _forward(layer, position, 4)
    recomputed.begin()
    _forward(layer, position, 7).backward()  # type: ignore[no-untyped-call]
    assert layer.seen[-1] == (True, 7)


def test_without_recompute_nothing_is_watched() -> None:
    layer, _, _ = _watched(replace(CONFIG, recompute="none"))
    assert not layer._forward_pre_hooks
