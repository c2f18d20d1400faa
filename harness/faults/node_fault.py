"""Base class of injected faults, and the true fields of a batch for those that deliver fields of other slots.

The base class has hooks that the probe calls at fixed points, and that do nothing by default.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor

from harness.core.cell.canary_legs import Leg
from harness.core.packing.arithmetic import Workload
from harness.core.packing.fields import BATCH
from harness.probe.truth import MicroTruth, StepTruth
from harness.upstreams.node_base import Batch, RankContext


class Fault:
    """No fault. Subclasses override some of the hooks; each rank has one instance for the whole cell."""

    step = 0  # the current step; the metadata and canary legs use step 0
    leg: Leg | None = None  # the current canary leg

    def truth(self, context: RankContext, dp: int | None = None) -> StepTruth:
        """Return the documents of the current step or leg, for data-parallel replica `dp`; None: this rank's
        replica.
        """
        return StepTruth(context.config, self.step, context.place.dp if dp is None else dp, self.leg)

    def truths(self, context: RankContext, dp: int | None = None) -> list[MicroTruth]:
        """Return the micro-batches of `truth`, which the data path should deliver."""
        return self.truth(context, dp).micro_batches

    def micro_batches(self, count: int, context: RankContext, step: int) -> int:
        """Return the number of micro-batches that this rank runs in a step; `count` are planned."""
        return count

    def on_path(self, path: Any, context: RankContext) -> None:
        """Called after the data path is constructed."""

    def on_workload(self, work: Workload, context: RankContext) -> Workload:
        """Return the workload to use instead of what the data path counted for a step."""
        return work

    def on_batch(self, batch: Batch, context: RankContext, chunk: int, micro_batch: int) -> Batch:
        """Return the batch to use instead of the one that the data path fetched, in every leg."""
        return batch

    def on_trainer(self) -> None:
        """Called before upstream's own trainer is run."""

    def on_model(self, chunks: list[Any], context: RankContext) -> None:
        """Called after the model is initialised, before the probe adds its hooks. `chunks`: DDP modules."""

    def on_step(self, context: RankContext, step: int) -> None:
        """Called before the forward of a step."""
        self.step = step

    def on_leg(self, context: RankContext, leg: Leg) -> None:
        """Called before a canary leg, which does not call `on_step`."""
        self.step, self.leg = 0, leg

    def on_loss(self, loss: Tensor, tokens: Tensor, context: RankContext) -> tuple[Tensor, Tensor]:
        """Loss sum and token count (scalars) of a micro-batch to use, on the last stage, after both are recorded."""
        return loss, tokens

    def on_optimizer(self, optimizer: Any, context: RankContext, step: int) -> None:
        """Called after gradients are recorded, before the optimizer uses them."""

    def on_gradients(self, chunks: list[Any], context: RankContext) -> None:
        """Called after gradients are reduced, before they are recorded."""


_Injection = TypeVar("_Injection", bound=type[Fault])
FAULTS: dict[str, Callable[[], Fault]] = {}  # by name; node_table.py imports every module that adds to it


def injects(name: str) -> Callable[[_Injection], _Injection]:
    """Register the injection of the fault that a specification has under the same name."""

    def register(injection: _Injection) -> _Injection:
        FAULTS[name] = injection
        return injection

    return register


def at_slots(batch: Batch, truth: MicroTruth, slots: Sequence[int]) -> dict[str, Tensor]:
    """Return the fields that the batch has, taken from other slots of the merged row: [1, len(slots)] each."""
    chosen = torch.tensor(slots)
    return {
        name: _in_form_of(batch, name, getattr(truth, name)[chosen][None]) for name in BATCH if has_field(batch, name)
    }


def own_fields(batch: Batch, truth: MicroTruth, context: RankContext) -> dict[str, Tensor]:
    """Return the fields that the batch has, taken from another micro-batch: [rows, local slots] each."""
    return {name: local_field(batch, name, truth, context) for name in BATCH if has_field(batch, name)}


def local_field(
    batch: Batch, name: str, truth: MicroTruth, context: RankContext, stream: Tensor | None = None
) -> Tensor:
    """This rank's slots of one field: [rows, local slots]. `stream` [slots] replaces the true values."""
    whole: Tensor = getattr(truth, name) if stream is None else stream
    return _in_form_of(batch, name, truth.local(whole, context.config.layout.cp, context.place.cp))


def has_field(batch: Batch, name: str) -> bool:
    return getattr(batch, name) is not None


def _in_form_of(batch: Batch, name: str, value: Tensor) -> Tensor:
    old: Tensor = getattr(batch, name)
    return value.to(old.device, old.dtype)
