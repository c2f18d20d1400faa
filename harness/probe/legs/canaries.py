"""Canary legs: each repeats step 0 with the initial weights, on documents varied by core/cell/canary_legs.py.

They run after the training leg, so that their failures do not cost the evidence of training. Legs without a backward
are the micro-batches of one pass: the stages of a pipeline fill once for all of them.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

import torch

from harness.core.cell.canary_legs import Leg, legs_of, shared_passes
from harness.core.run.records import CanaryLeg, EvaluationSeen, LaterSeen, LegSeen, StepSeen, TrainingSeen
from harness.features.experts.node_routers import reset_routers
from harness.features.optimizer.node_distributed import build_optimizer
from harness.oracle.drawing import draw
from harness.probe.legs.metadata import observed_batches
from harness.probe.legs.training import TrainingLeg
from harness.probe.observer import LegInPass, Losses
from harness.probe.passes import Passes
from harness.probe.truth import StepTruth
from harness.runtime.device.placement import synchronize


class CanaryLegs:
    """Runs the canary legs. Copies the initial weights to main memory when constructed."""

    def __init__(self, passes: Passes) -> None:
        self.passes = passes
        self.legs = legs_of(passes.context.config)
        named_parameters = passes.named_parameters() if self.legs else ()
        # `copy`: on the CPU `to` would return the parameter itself, and training would change the copy.
        self.initial = [named.parameter.detach().to("cpu", copy=True) for named in named_parameters]

    def run(self) -> None:
        """Append one LegSeen per leg to the record."""
        if not self.legs:
            return
        with torch.no_grad():
            for named, weight in zip(self.passes.named_parameters(), self.initial, strict=True):
                named.parameter.copy_(weight)
                named.parameter.grad = None  # left by the optimizer: a backward would add to it
        for legs in shared_passes(self.legs):
            begin = time.perf_counter()
            self.passes.recorder.flush()
            if legs[0].trains:
                legs_seen = [self._train(legs[0])]
            else:
                legs_seen = self._pass(legs) if legs[0].model else [self._fetch(legs[0])]
            elapsed_s = time.perf_counter() - begin
            for leg_seen in legs_seen:
                leg_seen.time_s = elapsed_s
            self.passes.recorder.record.legs += legs_seen
        self.passes.fault.leg = None
        self.passes.recorder.flush()

    def _fetch(self, leg: Leg) -> LegSeen:
        """Only fetch the batches, and compare them with the truth."""
        passes = self.passes
        passes.fault.on_leg(passes.context, leg)
        truth = StepTruth(passes.context.config, 0, passes.context.place.dp, leg)
        batches = observed_batches(truth, leg.name, passes.path, passes.context, passes.fault, passes.recorder)
        return LegSeen(leg=leg.name, batches=list(batches))

    def _pass(self, legs: Sequence[Leg]) -> list[LegSeen]:
        """Run a pass through the model; after a backward, which only a leg alone has, also record gradients."""
        passes, first = self.passes, legs[0]
        reset_routers(passes.chunks)
        passes.begin_legs([self._announced(leg) for leg in legs])
        iterators = passes.iterators()
        # Legs that share a pass have the same document numbers; their fingerprints would be added up.
        passes.state.fingerprints = first.backward
        # Autograd stays on even without a backward: results are bitwise equal only with the kernels used in training.
        count = sum(leg.micro_batches for leg in passes.legs)
        passes.run(iterators, micro_batches=count, forward_only=not first.backward)
        synchronize(passes.context.device)
        passes.read_losses()
        legs_seen = [_seen(leg.name, announced.losses) for leg, announced in zip(legs, passes.legs, strict=True)]
        if first.backward:
            legs_seen[0].parameters, legs_seen[0].activations = passes.parameters_seen(), passes.layer_recorder.drain()
        return legs_seen

    def _train(self, leg: Leg) -> LegSeen:
        """Train once more, with moved weights. The weights stay trained, so this must be the last leg."""
        passes = self.passes
        config = passes.context.config
        reset_routers(passes.chunks)
        self._move_weights()
        passes.fault.leg = None
        with passes.recorder.apart() as record:
            with passes.groups.hidden():
                optimizer = build_optimizer(config, passes.chunks, passes.groups)
            TrainingLeg(passes, optimizer, leg.name).run()
        first = record.steps[0]
        updates = {parameter.name: parameter.update for parameter in record.parameters if parameter.update is not None}
        # Those of the training leg, elsewhere in this record, are the ones that checks read; here only the change
        # counts.
        for parameter in record.parameters:
            parameter.update, parameter.in_norm = None, None
        return LegSeen(
            leg=leg.name,
            loss_sum=first.loss_sum or 0.0,
            token_count=first.token_count or 0,
            documents=first.documents,
            parameters=record.parameters,
            activations=record.activations,
            training=TrainingSeen(
                steps=[_later(step, step.step) for step in record.steps[1:]],
                evaluations=[_later(evaluation, evaluation.after) for evaluation in record.evaluations],
                changes={name: update.change for name, update in updates.items()},
                trained={name: update.trained for name, update in updates.items() if update.trained is not None},
                merged={weight.name: weight.after for weight in record.merged if weight.after is not None},
                expert_biases=record.expert_biases,
            ),
        )

    def _announced(self, leg: Leg) -> LegInPass:
        passes, context = self.passes, self.passes.context
        truth = StepTruth(context.config, 0, context.place.dp, leg)
        count = passes.fault.micro_batches(len(truth.plans), context, 0)
        return LegInPass(leg=leg.name, truth=truth, step=0, micro_batches=count)

    def _move_weights(self) -> None:
        """Change each weight by one machine epsilon, up or down at random."""
        seed = self.passes.context.config.train.seed
        with torch.no_grad():
            for named in self.passes.all_parameters():
                weight = named.parameter
                sign = named.shard.take(draw("move", named.name, named.shard.full, seed)).sign().to(weight)
                # The smallest change that no rounding undoes: how far results move with it is the noise floor of
                # training.
                weight.mul_(1 + torch.finfo(weight.dtype).eps * sign)


def _later(step_seen: StepSeen | EvaluationSeen, after: int) -> LaterSeen:
    norm = step_seen.grad_norm if isinstance(step_seen, StepSeen) else None
    return LaterSeen(after=after, loss_sum=step_seen.loss_sum or 0.0, documents=step_seen.documents, grad_norm=norm)


def _seen(name: CanaryLeg, losses: Losses) -> LegSeen:
    return LegSeen(
        leg=name,
        loss_sum=losses.loss_sum,
        token_count=int(losses.token_count),
        documents=losses.documents,
        tokens=losses.tokens,
    )
