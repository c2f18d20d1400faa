"""Training leg: a few optimizer steps through Megatron's schedule, with the records that the checks need."""

from __future__ import annotations

import time
from typing import Any

import torch
import torch.distributed as dist
from megatron.core import parallel_state

from harness.core.run.records import StepSeen
from harness.node.device.placement import synchronize
from harness.node.probe.hooks.routers import aux_scale
from harness.node.probe.legs.metadata import record_workload
from harness.node.probe.passes import Passes
from harness.node.probe.truth import StepTruth


class TrainingLeg:
    """Runs the training steps."""

    def __init__(self, passes: Passes, optimizer: Any) -> None:
        self.passes, self.optimizer = passes, optimizer
        self.context, self.fault, self.recorder = passes.context, passes.fault, passes.recorder

    def run(self) -> None:
        for step in range(self.context.config.train.steps):
            self._step(step)

    def _step(self, step: int) -> None:
        passes = self.passes
        truth = StepTruth(self.context.config, step, self.context.place.dp)
        count = self.fault.micro_batches(len(truth.plans), self.context, step)
        iterators = passes.begin(truth, "training", keep_tokens=step == 0)
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
        seen = StepSeen(
            step=step,
            micro_batches=count,
            real_tokens=sum(plan.real_tokens for plan in truth.plans),
            slots=sum(plan.slots for plan in truth.plans),
            documents=losses.documents,
            tokens=losses.tokens,
        )
        self._observe(seen)
        passes.progress("optimizer")
        begin, busy = time.perf_counter(), time.process_time()
        self.optimizer.step()
        synchronize(self.context.device)
        seen.time_s = trained + time.perf_counter() - begin
        on_cpu = self.context.device.kind == "cpu"
        seen.busy_s = computed + time.process_time() - busy if on_cpu else seen.time_s
        self.recorder.record.steps.append(seen)
        self.recorder.flush()

    def _observe(self, seen: StepSeen) -> None:
        """Record gradient norm and global loss, and at step 0 fingerprints; between reduction and optimizer step."""
        seen.grad_norm = _gradient_norm(self.passes)
        if seen.step == 0 and self.context.config.fingerprints:
            self.recorder.record.parameters = self.passes.parameters_seen()
            self.recorder.record.activations = self.passes.layer_recorder.drain()
        if seen.step == 0:
            self.recorder.record.aux_scale = aux_scale() if self.context.config.model.balanced else None
        self._global_loss(seen)

    def _global_loss(self, seen: StepSeen) -> None:
        """Record loss sum and token count over all replicas and context-parallel ranks, on the last stage only."""
        if not self.context.is_last(len(self.passes.chunks) - 1):
            return
        losses = self.passes.losses
        device = self.context.device.torch_device
        totals = torch.tensor([losses.loss_sum, losses.token_count], dtype=torch.float64, device=device)
        dist.all_reduce(totals, group=parallel_state.get_data_parallel_group(with_context_parallel=True))
        seen.loss_sum, seen.token_count = float(totals[0]), int(totals[1])


def _gradient_norm(passes: Passes) -> float:
    """Norm over the whole model before clipping; replicated parameters count once.

    Experts distributed over ep ranks (upstream sets their `allreduce` to False) are also summed over those ranks.
    """
    context = passes.context
    totals = torch.zeros(2, dtype=torch.float64, device=context.device.torch_device)
    for item in passes.named_parameters():
        duplicate = item.shard.dim is None and context.place.tp > 0
        if not duplicate and not getattr(item.parameter, "shared", False):
            spread = not getattr(item.parameter, "allreduce", True)
            totals[int(spread)] += passes.gradient_of(item).double().square().sum()
    dist.all_reduce(totals, group=parallel_state.get_model_parallel_group())
    if context.config.layout.ep > 1:
        dist.all_reduce(totals[1:], group=parallel_state.get_expert_model_parallel_group())
    return float(totals.sum().sqrt())
