"""Calls of a model chunk."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from harness.probe.passes import forward
from harness.upstreams.node_base import Batch
from tests.runtime.conftest import config

pytestmark = pytest.mark.usefixtures("world_of_one")
ROWS, SLOTS, VOCABULARY = 2, 3, 8
LOGITS = torch.randn(ROWS, SLOTS, VOCABULARY, generator=torch.Generator().manual_seed(0))


class Chunk:
    """A chunk that returns logits without labels, and notes how it was called."""

    def __init__(self, last: bool) -> None:
        self.post_process = last
        self.given: dict[str, Any] = {}

    def __call__(self, *_: Any, **more: Any) -> torch.Tensor:
        self.given = more
        return LOGITS.clone()


def called(smoothing: float, last: bool = True) -> tuple[Chunk, torch.Tensor]:
    cell = config()
    cell = replace(cell, train=replace(cell.train, label_smoothing=smoothing))
    chunk = Chunk(last)
    labels = torch.tensor([[0, 1, 2], [3, 4, 5]])
    return chunk, forward(chunk, Batch(params=SimpleNamespace(), labels=labels), cell)


def test_without_smoothing_the_model_computes_the_loss() -> None:
    chunk, output = called(0.0)
    assert chunk.given["labels"] is not None and torch.equal(output, LOGITS)


def test_smoothed_losses_are_computed_from_the_logits() -> None:
    chunk, losses = called(0.1)
    logs = LOGITS.log_softmax(-1)
    own = logs.gather(-1, torch.tensor([[0, 1, 2], [3, 4, 5]])[..., None])[..., 0]
    others = (logs.sum(-1) - own) / (VOCABULARY - 1)
    assert chunk.given["labels"] is None
    torch.testing.assert_close(losses, -(0.9 * own + 0.1 * others))


def test_stages_before_the_last_return_what_they_compute() -> None:
    assert torch.equal(called(0.1, last=False)[1], LOGITS)
