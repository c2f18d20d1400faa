"""The seams at which a fault can act: hooks that the probe calls at fixed places. The base class does nothing."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from harness.core.cell.canary_legs import Leg
from harness.core.packing.workload import Workload
from harness.node.data_paths.base import Batch, RankContext
from harness.node.probe.truth import MicroTruth, StepTruth


class Fault:
    """The clean run. A fault overrides some of the hooks; one object serves a rank for the whole cell."""

    step = 0  # the current step; the metadata leg and the canary legs work on step 0
    leg: Leg | None = None  # the current canary leg

    def truth(self, context: RankContext, dp: int | None = None) -> StepTruth:
        """What the data path is given in the current step or leg, for this rank's replica unless said."""
        return StepTruth(context.config, self.step, context.place.dp if dp is None else dp, self.leg)

    def truths(self, context: RankContext, dp: int | None = None) -> list[MicroTruth]:
        """What the data path should deliver: the micro-batches of `truth`."""
        return self.truth(context, dp).micro_batches

    def micro_batches(self, count: int, context: RankContext, step: int) -> int:
        """How many of the planned micro-batches of a step this rank runs."""
        return count

    def on_path(self, path: Any, context: RankContext) -> None:
        """After the data path is made."""

    def on_workload(self, work: Workload, context: RankContext) -> Workload:
        """What the data path counted of the work of a step."""
        return work

    def on_batch(self, batch: Batch, context: RankContext, chunk: int, micro_batch: int) -> Batch:
        """After the data path's fetch, in every leg."""
        return batch

    def on_model(self, chunks: list[Any], context: RankContext) -> None:
        """After the model is built and its weights are set, before the probe's own hooks: `chunks` are DDP modules."""

    def on_step(self, context: RankContext, step: int) -> None:
        """Before the forward of a step."""
        self.step = step

    def on_leg(self, context: RankContext, leg: Leg) -> None:
        """Before a canary leg, of which `on_step` is not told."""
        self.step, self.leg = 0, leg

    def on_loss(self, loss: Tensor, tokens: Tensor, context: RankContext) -> tuple[Tensor, Tensor]:
        """The loss function's sum and token count of one micro-batch, on the last stage, after they are recorded."""
        return loss, tokens

    def on_gradients(self, chunks: list[Any], context: RankContext) -> None:
        """After reduction, before gradients are observed."""
