"""Canary legs: each repeats step 0 with the initial weights, on documents varied by core/cell/canary_legs.py.

They run after the training leg, so that their failures do not cost the evidence of training.
"""

from __future__ import annotations

import time

import torch
from torch import Tensor

from harness.core.cell.canary_legs import Leg, legs_of
from harness.core.run.records import LegSeen
from harness.node.device.placement import synchronize
from harness.node.probe.hooks.expert_biases import reset_biases
from harness.node.probe.legs.metadata import observed_batches
from harness.node.probe.legs.rewriting import Rewriter
from harness.node.probe.model.bridge.vision import language_of
from harness.node.probe.model.gpt import unwrap
from harness.node.probe.passes import Passes
from harness.node.probe.truth import StepTruth
from harness.node.probe.weights import draw


class CanaryLegs:
    """Runs the canary legs. Copies the initial weights to main memory when constructed."""

    def __init__(self, passes: Passes) -> None:
        self.passes = passes
        self.legs = legs_of(passes.context.config)
        rewrites = any(leg.rewrites for leg in self.legs)
        chunks = [language_of(unwrap(chunk)) for chunk in passes.chunks] if rewrites else []
        self.rewriter = Rewriter(chunks, passes.context, passes.state)
        self.initial = [_copy(item.parameter) for item in passes.named_parameters()] if self.legs else []

    def run(self) -> None:
        """Append one LegSeen per leg to the record."""
        if not self.legs:
            return
        with torch.no_grad():
            for item, weight in zip(self.passes.named_parameters(), self.initial, strict=True):
                item.parameter.copy_(weight)
                item.parameter.grad = None  # left by the optimizer: a backward would add to it
        for leg in self.legs:
            begin = time.perf_counter()
            self.passes.recorder.flush()
            self.passes.fault.on_leg(self.passes.context, leg)
            seen = self._pass(leg) if leg.model else self._fetch(leg)
            seen.time_s = time.perf_counter() - begin
            self.passes.recorder.record.legs.append(seen)
        self.passes.fault.leg = None
        self.passes.recorder.flush()

    def _fetch(self, leg: Leg) -> LegSeen:
        """Only fetch the batches, and compare them with the truth."""
        passes = self.passes
        truth = StepTruth(passes.context.config, 0, passes.context.place.dp, leg)
        batches = observed_batches(truth, leg.name, passes.path, passes.context, passes.fault, passes.recorder)
        return LegSeen(leg=leg.name, batches=list(batches))

    def _pass(self, leg: Leg) -> LegSeen:
        """Run a pass through the model; after a backward, also record gradients."""
        passes = self.passes
        truth = StepTruth(passes.context.config, 0, passes.context.place.dp, leg)
        reset_biases(passes.chunks, passes.context.config.model.layers)
        count = passes.fault.micro_batches(len(truth.plans), passes.context, 0)
        if leg.moved_weights:
            self._move_weights()
        iterators = passes.begin(truth, leg.name, keep_tokens=False)
        passes.state.fingerprints = leg.backward
        self.rewriter.lengths = {item.index: item.length for item in leg.documents} if leg.rewrites else None
        # Autograd stays on even without a backward: results are bitwise equal only with the kernels used in training.
        passes.run(iterators, micro_batches=count, forward_only=not leg.backward)
        self.rewriter.lengths = None
        synchronize(passes.context.device)
        losses = passes.read_losses()
        seen = LegSeen(
            leg=leg.name,
            loss_sum=losses.loss_sum,
            token_count=int(losses.token_count),
            documents=losses.documents,
            tokens=losses.tokens,
        )
        if leg.backward:
            seen.parameters, seen.activations = passes.parameters_seen(), passes.layer_recorder.drain()
            seen.input_gradients = self.rewriter.drain()
        return seen

    def _move_weights(self) -> None:
        """Change each weight by one machine epsilon, up or down at random. Not undone, so this must be the last leg."""
        seed = self.passes.context.config.train.seed
        with torch.no_grad():
            for item in self.passes.all_parameters():
                weight = item.parameter
                sign = item.shard.take(draw("move", item.name, item.shard.full, seed)).sign().to(weight)
                weight.mul_(1 + torch.finfo(weight.dtype).eps * sign)


def _copy(parameter: Tensor) -> Tensor:
    return parameter.detach().to("cpu", copy=True)
