"""Faults injected at run time: each breaks the harness's own reference path, the model, the loss or the step.

A fault is a set of hooks that the probe calls at fixed seams; the base class does nothing. What each fault is
modelled on, and where it must be caught, stands in harness/plan/faults.py under the same name.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from harness.node.data_paths.base import Batch, RankContext


class Fault:
    """The seams. The base class is the clean run."""

    def on_batch(self, batch: Batch, context: RankContext, chunk: int, micro_batch: int) -> Batch:
        """After the data path's fetch, in both legs."""
        return batch

    def on_model(self, chunks: list[Any], context: RankContext) -> None:
        """After the model is built and its weights are set."""

    def on_step(self, context: RankContext, step: int) -> None:
        """Before the forward of a step."""

    def on_loss(self, loss: Tensor, tokens: Tensor, context: RankContext) -> tuple[Tensor, Tensor]:
        """The loss function's sum and token count of one micro-batch, on the last stage."""
        return loss, tokens

    def on_gradients(self, chunks: list[Any], context: RankContext) -> None:
        """After reduction, before gradients are observed."""


FAULTS: dict[str, type[Fault]] = {}


def fault_named(name: str | None) -> Fault:
    """The fault of that name, or the clean run for None. KeyError for an unknown name."""
    return Fault() if name is None else FAULTS[name]()
