"""Base class of injected faults: hooks that the probe calls at fixed places, which do nothing by default."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from harness.core.cell.canary_legs import Leg
from harness.core.packing.workload import Workload
from harness.node.data_paths.base import Batch, RankContext
from harness.node.probe.truth import MicroTruth, StepTruth


class Fault:
    """The clean run. A fault overrides some of the hooks; each rank has one instance for the whole cell."""

    step = 0  # the current step; the metadata and canary legs use step 0
    leg: Leg | None = None  # the current canary leg

    def truth(self, context: RankContext, dp: int | None = None) -> StepTruth:
        """The documents of the current step or leg, for data-parallel replica `dp`; None: this rank's replica."""
        return StepTruth(context.config, self.step, context.place.dp if dp is None else dp, self.leg)

    def truths(self, context: RankContext, dp: int | None = None) -> list[MicroTruth]:
        """The micro-batches of `truth`, which the data path should deliver."""
        return self.truth(context, dp).micro_batches

    def micro_batches(self, count: int, context: RankContext, step: int) -> int:
        """How many micro-batches this rank runs in a step; `count` are planned."""
        return count

    def on_path(self, path: Any, context: RankContext) -> None:
        """After the data path is constructed."""

    def on_workload(self, work: Workload, context: RankContext) -> Workload:
        """The work of a step as the data path counted it."""
        return work

    def on_batch(self, batch: Batch, context: RankContext, chunk: int, micro_batch: int) -> Batch:
        """After the data path's fetch, in every leg."""
        return batch

    def on_model(self, chunks: list[Any], context: RankContext) -> None:
        """After the model is built and initialised, before the probe adds its hooks. `chunks`: DDP modules."""

    def on_step(self, context: RankContext, step: int) -> None:
        """Before the forward of a step."""
        self.step = step

    def on_leg(self, context: RankContext, leg: Leg) -> None:
        """Before a canary leg, which does not call `on_step`."""
        self.step, self.leg = 0, leg

    def on_loss(self, loss: Tensor, tokens: Tensor, context: RankContext) -> tuple[Tensor, Tensor]:
        """Loss sum and token count of one micro-batch, both scalar, on the last stage, after they are recorded."""
        return loss, tokens

    def on_gradients(self, chunks: list[Any], context: RankContext) -> None:
        """After reduction, before gradients are observed."""
