"""Observes megatron.training.training while pretrain_gpt.py runs, by wrapping its functions. Upstream's code is called
with its own arguments, and its results are returned unchanged.

| wrapped | why |
|---|---|
| setup_model_and_optimizer | the model gets the cell's weights, by global name, and the probe's hooks |
| train_step | a step begins and ends |
| forward_step_func, an argument of train_step | a micro-batch begins; what the model gets is compared with the plan |
| the loss function that forward_step_func returns | the losses of the micro-batch |
| step, of the optimizer | gradients are reduced and not yet clipped |
| training_log | what upstream reports of a step |
"""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable
from functools import partial
from typing import Any

from torch import Tensor

from harness.core.run.records import ReportedStep, StepSeen
from harness.node.data_paths.base import Batch, RankContext
from harness.node.device.placement import synchronize
from harness.node.probe.hooks.batches import batch_seen
from harness.node.probe.model.gpt import expert_rank, unwrap
from harness.node.probe.observer import Observer
from harness.node.probe.step_record import observe
from harness.node.probe.truth import StepTruth
from harness.node.probe.weights import initialize
from harness.node.recording.recorder import Recorder

_WRAPPED = ("setup_model_and_optimizer", "train_step", "training_log")


class Attached:
    """The wrappers of one rank; `training`: the module megatron.training.training."""

    observer: Observer  # from the end of setup_model_and_optimizer
    seen: StepSeen | None  # of the step in progress, from its optimizer step on

    def __init__(self, training: Any, context: RankContext, recorder: Recorder) -> None:
        self.training, self.context, self.recorder = training, context, recorder
        self.step = 0
        self.clock = _Clock(context)
        for name in _WRAPPED:
            setattr(training, name, partial(getattr(self, f"_{name}"), getattr(training, name)))

    def _setup_model_and_optimizer(self, upstream: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        model, optimizer, scheduler = upstream(*args, **kwargs)
        place, config = self.context.place, self.context.config
        for chunk in model:
            rank = {"tp_rank": place.tp, "tp_size": config.layout.tp, "ep_rank": expert_rank()}
            initialize(unwrap(chunk), seed=config.train.seed, **rank)
        optimizer.reload_model_params()  # the optimizer's fp32 copies of the weights
        self.observer = Observer(model, self.context, self.recorder)
        optimizer.step = partial(self._update, optimizer.step)
        return model, optimizer, scheduler

    def _train_step(
        self, upstream: Callable[..., Any], forward_step: Callable[..., Any], *args: Any, **kwargs: Any
    ) -> Any:
        first = self.step == 0
        truth = StepTruth(self.context.config, self.step, self.context.place.dp)
        self.observer.begin_pass(truth, "training", keep_tokens=first)
        self.observer.state.fingerprints = first and self.context.config.fingerprints
        self.seen = None
        self.clock.restart()
        result = upstream(partial(self._forward_step, forward_step), *args, **kwargs)
        self.clock.stop()
        if self.seen is None:  # upstream did not call its optimizer
            self.seen = self._observed()
        self.seen.time_s, self.seen.busy_s = self.clock.elapsed, self.clock.busy
        self.recorder.record.micro_batches.append(self.seen.micro_batches)
        self.recorder.record.steps.append(self.seen)
        self.recorder.flush()
        self.step += 1
        return result

    def _forward_step(self, upstream: Callable[..., Any], iterator: Any, model: Any, *args: Any, **kwargs: Any) -> Any:
        observer, inner = self.observer, unwrap(model)
        chunk = next(number for number, other in enumerate(observer.chunks) if unwrap(other) is inner)
        number = observer.fetching(chunk)
        if number >= len(observer.truth.plans):  # only counted: the check micro_batch_count reports it
            return upstream(iterator, model, *args, **kwargs)
        entered: list[Tensor] = []
        forward = inspect.signature(inner.forward)

        def enter(_: Any, args: Any, kwargs: Any) -> None:
            self.clock.stop()
            self._record_batch(forward.bind(*args, **kwargs).arguments, chunk, number)
            self.clock.start()
            entered.append(observer.entering(chunk, number))

        hook = inner.register_forward_pre_hook(enter, with_kwargs=True)
        output, loss = upstream(iterator, model, *args, **kwargs)
        hook.remove()
        return output, partial(self._loss, loss, loss.args[0], entered[0])  # partial(loss_func, loss_mask, model=model)

    def _record_batch(self, arguments: dict[str, Any], chunk: int, number: int) -> None:
        """Compare the arguments of GPTModel.forward, by name, with the plan."""
        batch = Batch(
            tokens=arguments.get("input_ids"),
            labels=arguments.get("labels"),
            position_ids=arguments.get("position_ids"),
            loss_mask=arguments.get("loss_mask"),
            params=arguments.get("packed_seq_params"),
        )
        truth = self.observer.truth
        self.recorder.record.batches.append(batch_seen(batch, truth, self.context, self.recorder, chunk, number))

    def _loss(self, upstream: Callable[..., Any], mask: Tensor, owners: Tensor, output: Tensor, *args: Any) -> Any:
        self.observer.on_loss(output, mask, owners)
        return upstream(output, *args)

    def _update(self, upstream: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Around optimizer.step. What the harness records does not count as time of the step."""
        self.clock.stop()
        self.seen = self._observed()
        self.clock.start()
        return upstream(*args, **kwargs)

    def _observed(self) -> StepSeen:
        """The record of a step whose gradients are reduced. Collective."""
        self.observer.progress("reduce")
        losses = self.observer.read_losses()
        plans = self.observer.truth.plans
        seen = StepSeen(
            step=self.step,
            micro_batches=self.observer.counts[0],
            real_tokens=sum(plan.real_tokens for plan in plans),
            slots=sum(plan.slots for plan in plans),
            documents=losses.documents,
            tokens=losses.tokens,
        )
        observe(self.observer, seen)
        self.observer.progress("optimizer")
        return seen

    def _training_log(self, upstream: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        told = inspect.signature(upstream).bind(*args, **kwargs).arguments
        loss = told["loss_dict"].get("lm loss")
        self.recorder.record.reported.append(
            ReportedStep(
                step=told["iteration"] - 1,  # upstream counts from 1
                consumed_samples=int(self.training.get_args().consumed_train_samples),
                skipped=int(told["skipped_iter"]),
                loss_scale=float(told["loss_scale"]),
                loss=None if loss is None else float(loss),
                grad_norm=_number(told["grad_norm"]),
                learning_rate=_number(told["learning_rate"]),
            )
        )
        self.recorder.flush()
        return upstream(*args, **kwargs)


class _Clock:
    """Wall time and, on a CPU, processor time of a step."""

    def __init__(self, context: RankContext) -> None:
        self.device = context.device

    def restart(self) -> None:
        self.elapsed = self.busy = 0.0
        self.start()

    def start(self) -> None:
        synchronize(self.device)
        self._begun = time.perf_counter(), time.process_time()

    def stop(self) -> None:
        synchronize(self.device)
        elapsed = time.perf_counter() - self._begun[0]
        self.elapsed += elapsed
        self.busy += time.process_time() - self._begun[1] if self.device.kind == "cpu" else elapsed


def _number(value: Any) -> float | None:
    return None if value is None else float(value)
