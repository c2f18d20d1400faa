"""Training leg: a few optimizer steps and evaluations through Megatron's schedule, with what the checks need."""

from __future__ import annotations

import time
from typing import Any

import torch

from harness.core.run.records import LegName, StepSeen
from harness.features.optimizer.node_distributed import build_schedule
from harness.probe.legs.metadata import record_workload
from harness.probe.passes import Passes
from harness.probe.step_record import begin_evaluation, end_evaluation, observe
from harness.probe.truth import StepTruth
from harness.probe.updates import AdapterRecord, Updates
from harness.runtime.device.placement import synchronize


class TrainingLeg:
    """Runs the training steps. `leg`: another one that trains, whose layers are not recorded."""

    def __init__(self, passes: Passes, optimizer: Any, leg: LegName = "training") -> None:
        self.passes, self.optimizer, self.leg = passes, optimizer, leg
        self.schedule = build_schedule(passes.context.config, optimizer)
        self.context, self.fault, self.recorder = passes.context, passes.fault, passes.recorder
        self.updates: Updates | None = None  # from the first update on, if fingerprints are recorded

    def run(self) -> None:
        train = self.context.config.train
        adapters = AdapterRecord(self.passes)
        for step in range(train.steps):
            self._step(step)
            for _ in range(self.passes.context.config.evaluated.count(step + 1)):
                self._evaluate()
        if self.updates:
            self.updates.last()
        adapters.last()
        self.recorder.flush()

    def _evaluate(self) -> None:
        passes = self.passes
        truth = begin_evaluation(passes)
        iterators = passes.iterators()
        for chunk in passes.chunks:
            chunk.eval()
        with torch.no_grad():
            passes.run(iterators, micro_batches=len(truth.plans), forward_only=True)
        # Read before train(): a data path or a model that switches itself back would drop out tokens in evaluation.
        training = any(module.training for chunk in passes.chunks for module in chunk.modules())
        for chunk in passes.chunks:
            chunk.train()
        end_evaluation(passes, training=training)

    def _step(self, step: int) -> None:
        passes = self.passes
        truth = StepTruth(self.context.config, step, self.context.place.dp)
        count = self.fault.micro_batches(len(truth.plans), self.context, step)
        # Losses of single tokens are compared for step 0 alone; later steps would multiply the record.
        iterators = passes.begin(truth, self.leg, keep_tokens=step == 0 and self.leg == "training")
        record_workload(passes.path, "training", step, self.context, self.fault, self.recorder)
        passes.state.fingerprints = step == 0 and self.context.config.fingerprints
        synchronize(self.context.device)
        begin, busy = time.perf_counter(), time.process_time()
        self.optimizer.zero_grad()
        self.fault.on_step(self.context, step)
        passes.run(iterators, micro_batches=count, forward_only=False)
        synchronize(self.context.device)
        trained, computed = time.perf_counter() - begin, time.process_time() - busy
        losses = passes.read_losses()
        step_seen = StepSeen(
            step=step,
            micro_batches=count,
            real_tokens=sum(plan.real_tokens for plan in truth.plans),
            slots=sum(plan.slots for plan in truth.plans),
            documents=losses.documents,
            tokens=losses.tokens,
        )
        # Before the update, which clips gradients in place.
        observe(passes, step_seen, self.optimizer)
        passes.progress("optimizer")
        if first := passes.state.fingerprints:
            # Created between backward and the first update, since it copies the weights from before it.
            self.updates = Updates(passes, self.optimizer, passes.groups)
        begin, busy = time.perf_counter(), time.process_time()
        self.fault.on_optimizer(self.optimizer, self.context, step)
        with self.passes.groups.hidden():
            self.optimizer.step()
        synchronize(self.context.device)
        step_seen.time_s = trained + time.perf_counter() - begin
        on_cpu = self.context.device.kind == "cpu"
        # On a CPU, cells run side by side, and wall time would measure the neighbours.
        step_seen.busy_s = computed + time.process_time() - busy if on_cpu else step_seen.time_s
        if first and self.updates:
            self.updates.first()
        self.schedule.step(self.context.config.train.global_batch)
        self.recorder.record.steps.append(step_seen)
        self.recorder.flush()
