"""Wrappers around functions of an upstream trainer, from which a rank's record is written.

Upstream's code is called with its own arguments, and its results are returned unchanged. A trainer's node_attach.py
says which functions of upstream they are put around, and reads what differs between trainers. Of every trainer:

| wrapped | why |
|---|---|
| GPTModel.__init__, HybridModel.__init__ | the arguments with which upstream builds the model |
| the end of its setup | configurations are recorded; the model gets the cell's weights, by global name, and the hooks |
| train_step | a step begins and ends |
| forward_step_func, an argument of train_step | a micro-batch begins; what the model gets is compared with the plan |
| the loss function that forward_step_func returns | the losses of the micro-batch |
| step, of the optimizer | gradients are reduced and not yet clipped; then what the updates made of them |
| training_log | what upstream reports of a step |
| num_floating_point_operations | what upstream counts of a step |
| print_rank_last, within training_log | the line that users read; only the last rank prints it |
| evaluate | an evaluation begins and ends; what upstream reports of it |
"""

from __future__ import annotations

import inspect
import re
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch.distributed as dist
from torch import Tensor

from harness.core.cell.axis_values import TE_KINDS
from harness.core.cell.config import CellConfig
from harness.core.cell.reports import LOSS, PRINTED
from harness.core.run.records import BatchSeen, ReportedStep, StepSeen
from harness.features.attention.node_kinds import core_attention
from harness.probe.built import keep_arguments, record_built
from harness.probe.hooks.batches import batch_seen
from harness.probe.model.gpt import shard_ranks, unwrap
from harness.probe.model.norm import norm_of
from harness.probe.model.parts import put
from harness.probe.observer import Observer
from harness.probe.step_record import begin_evaluation, end_evaluation, observe
from harness.probe.truth import StepTruth
from harness.probe.updates import AdapterRecord, Updates, stored_state
from harness.probe.weights import initialize
from harness.runtime.device.placement import synchronize
from harness.runtime.recording.errors import UnknownNameError
from harness.runtime.recording.recorder import Recorder
from harness.upstreams.node_base import Batch, RankContext, batch_given, mask_and_loss

_ITERATION = re.compile(r"\]\s*iteration\s+(\d+)/\s*(\d+)\s*$")  # after the time, in brackets


# The line of metrics that upstream prints after a step.
def printed_fields(line: str) -> dict[str, str]:
    """Return the values of the fields PRINTED, as they were printed; empty if this is another kind of line.

    " [2026-08-01 10:00:00] iteration        2/       3 | consumed samples:            8 | ..." gives
    {"iteration": "2/3", "consumed samples": "8", ...}.
    """
    first, *others = line.split("|")
    found = _ITERATION.search(first)
    if found is None:
        return {}
    pairs = [part.partition(":") for part in others]
    values = {"iteration": "/".join(found.groups())} | {name.strip(): value.strip() for name, _, value in pairs}
    return {name: values[name] for name in PRINTED if name in values}


# The cell's attention and norm in Megatron's local layers, whose own ones refuse packed rows, context
# parallelism and sequence parallelism. Layers of Transformer Engine are left as they are.
def use_own_layers(config: CellConfig) -> None:
    """Put them where upstream's specs of local layers take theirs from; the cell's attention is resolved."""
    import megatron.core.models.backends as backends
    import megatron.core.models.gpt.gpt_layer_specs as layer_specs
    import megatron.core.transformer.transformer_block as transformer_block

    if config.attention in TE_KINDS:
        return
    attention, norm, local = core_attention(config.attention), norm_of(config), backends.LocalSpecProvider
    put(local, core_attention=lambda self: attention, layer_norm=lambda self, *args, **kwargs: norm)
    put(layer_specs, LNImpl=norm)
    put(transformer_block, LayerNormImpl=norm)


class Arguments(dict[str, Any]):
    """The arguments of a call of upstream's function, by name; UnknownNameError for one that it does not have."""

    def __init__(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> None:
        super().__init__(inspect.signature(function).bind(*args, **kwargs).arguments)
        self.function = f"{function.__module__}.{function.__qualname__}"

    def __missing__(self, name: str) -> Any:
        raise UnknownNameError(f"{self.function} was called without {name}, which the record of the step needs")


class Wrappers:
    """The wrappers of one rank."""

    observer: Observer  # from `built` on
    seen: StepSeen | None  # of the step in progress, from its optimizer step on
    modes: set[bool]  # whether modules were in training mode, in the evaluation in progress
    batch_record: BatchSeen  # of the micro-batch whose forward began last

    def __init__(self, context: RankContext, recorder: Recorder) -> None:
        self.context, self.recorder = context, recorder
        keep_arguments()
        self.step = context.config.start_step
        self.clock = _Clock(context)
        self.updates: Updates | None = None  # from the first update on, if fingerprints are recorded
        self.lines: list[str] | None = None  # printed by the training_log in progress; None between two

    def wrap(self, module: Any, name: str, wrapper: Callable[..., Any]) -> None:
        """Replace upstream's function of this name by the wrapper, which gets it as its first argument."""
        setattr(module, name, partial(wrapper, getattr(module, name)))

    def batch(self, arguments: dict[str, Any]) -> Batch:
        """Return the batch in the arguments of the model's forward, by name."""
        return batch_given(arguments)

    def built(self, chunks: list[Any], optimizer: Any, scheduler: Any = None) -> None:
        """To be called when upstream has built the model chunks and their optimizer, and loaded a checkpoint."""
        record_built(self.recorder.record, self.context.config, chunks, optimizer)
        self.recorder.flush()
        if not self.context.config.start_step:
            self.initialize(chunks, only_trained=self.context.config.model.peft is not None)
            optimizer.reload_model_params()  # the optimizer's fp32 copies of the weights
        self.observer = Observer(chunks, self.context, self.recorder)
        self.adapters = AdapterRecord(self.observer)
        self.optimizer, self.scheduler = optimizer, scheduler
        self._store()
        optimizer.step = partial(self._update, optimizer.step)

    def initialize(self, chunks: list[Any], *, only_trained: bool = False) -> None:
        """Give model chunks the cell's weights; `only_trained`: upstream has loaded those that adapters freeze."""
        ranks = shard_ranks(self.context)
        for chunk in chunks:
            initialize(unwrap(chunk), seed=self.context.config.train.seed, only_trained=only_trained, **ranks)

    def _store(self) -> None:
        """Record the state that a checkpoint holds, where the cell compares it: the last one before the next step."""
        if self.step in self.context.config.stored:
            state, record = stored_state(self.observer, self.optimizer, self.scheduler, self.step), self.recorder.record
            record.states = [*(other for other in record.states if other.after != self.step), state]

    def train_step(
        self, upstream: Callable[..., Any], forward_step: Callable[..., Any], *args: Any, **more: Any
    ) -> Any:
        with self.stepping():
            return upstream(partial(self.forward_step, forward_step), *args, **more)

    @contextmanager
    def stepping(self) -> Iterator[None]:
        """A training step, of which the record is complete afterwards."""
        first = self.step == 0
        truth = StepTruth(self.context.config, self.step, self.context.place.dp)
        self.observer.begin_pass(truth, "training", keep_tokens=first)
        self.observer.state.fingerprints = first and self.context.config.fingerprints
        self.seen = None
        self.clock.restart()
        yield
        self.clock.stop()
        if self.seen is None:  # upstream did not call its optimizer
            self.seen = self._observed()
            if self.observer.state.fingerprints:
                self.updates = Updates(self.observer, self.optimizer)
                self.updates.first()
        self.seen.time_s, self.seen.busy_s = self.clock.elapsed, self.clock.busy
        self.recorder.record.micro_batches.append(self.seen.micro_batches)
        self.recorder.record.steps.append(self.seen)
        self.step += 1
        if self.updates and self.step == self.context.config.train.steps:
            self.updates.last()
        if self.step == self.context.config.train.steps:
            self.adapters.last()
        self._store()
        self.recorder.flush()

    def evaluate(self, run: Callable[[], Any]) -> Any:
        """Around upstream's `evaluate`, which `run` calls with a wrapped forward_step_func."""
        begin_evaluation(self.observer)
        self.modes = set()
        found = run()
        loss = _mean_loss(found[0] or {})  # ({name: mean}, ...)
        end_evaluation(self.observer, training=True in self.modes, reported=_number(loss))
        self._store()  # upstream saves after the evaluation, which draws random numbers
        return found

    def report(self, arguments: Mapping[str, Any], step: int, consumed: int, **counted: Any) -> None:
        """Record the arguments of training_log, whose names are the same in Megatron-LM and Megatron-Bridge.

        `counted`: further fields of the report, numbers.
        """
        loss = _mean_loss(arguments["loss_dict"])
        self.recorder.record.reported.append(
            ReportedStep(
                step=step,
                consumed_samples=consumed,
                skipped=int(arguments["skipped_iter"]),
                loss_scale=float(arguments["loss_scale"]),
                loss=None if loss is None else float(loss),
                grad_norm=_number(arguments["grad_norm"]),
                learning_rate=_number(arguments["learning_rate"]),
                **counted,
            )
        )
        self.recorder.flush()

    def logging(self, run: Callable[[], Any]) -> Any:
        """Around upstream's training_log, whose step has been reported: keep the line that it prints."""
        self.lines = []
        result = run()
        printed = [fields for line in self.lines if (fields := printed_fields(line))]
        self.recorder.record.reported[-1].printed = printed[-1] if printed else None
        self.recorder.flush()
        self.lines = None
        return result

    def print_line(self, upstream: Callable[..., Any], text: str) -> None:
        """Around upstream's print_rank_last, which all ranks call."""
        if self.lines is not None and dist.get_rank() == dist.get_world_size() - 1:
            self.lines.append(text)
        upstream(text)

    def forward_step(self, upstream: Callable[..., Any], iterator: Any, model: Any, *args: Any, **kwargs: Any) -> Any:
        """Around upstream's forward_step_func, in a pass that has been announced."""
        observer, inner = self.observer, unwrap(model)
        chunk = next(number for number, other in enumerate(observer.chunks) if unwrap(other) is inner)
        number = observer.fetching(chunk)
        if number >= len(observer.truth.plans):  # only counted: the check micro_batch_count reports it
            return upstream(iterator, model, *args, **kwargs)
        entered: list[Tensor] = []
        forward = inspect.signature(inner.forward)

        def enter(_: Any, args: Any, kwargs: Any) -> None:
            self.clock.stop()
            batch = self.batch(forward.bind(*args, **kwargs).arguments)
            if observer.state.leg == "training":
                self.batch_record = batch_seen(batch, observer.truth, self.context, self.recorder, chunk, number)
                self.recorder.record.batches.append(self.batch_record)
            else:
                self.modes |= {module.training for module in model.modules()}
            self.clock.start()
            entered.append(observer.entering(chunk, number))

        hook = inner.register_forward_pre_hook(enter, with_kwargs=True)
        output, loss = upstream(iterator, model, *args, **kwargs)
        hook.remove()
        return output, self.observed_loss(loss, entered[0])

    def observed_loss(self, upstream: Any, owners: Tensor) -> Callable[..., Any]:
        """Upstream's loss function of a micro-batch, observed; `owners` of its slots: `Observer.entering`."""
        return partial(self._loss, upstream, mask_and_loss(upstream)[0], owners)

    def _loss(self, upstream: Callable[..., Any], mask: Tensor, owners: Tensor, output: Tensor, *args: Any) -> Any:
        self.observer.on_loss(output, mask, owners)
        returned = upstream(output, *args)
        self.observer.on_returned(returned)
        return returned

    def _update(self, upstream: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Around optimizer.step. What the harness records does not count as time of the step."""
        self.clock.stop()
        self.seen = self._observed()
        if first := self.observer.state.fingerprints:
            self.updates = Updates(self.observer, self.optimizer)
        self.clock.start()
        result = upstream(*args, **kwargs)
        self.clock.stop()
        if first and self.updates:
            self.updates.first()
        self.clock.start()
        return result

    def _observed(self) -> StepSeen:
        """Return the record of a step whose gradients are reduced. Collective."""
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
        observe(self.observer, seen, self.optimizer)
        self.observer.progress("optimizer")
        return seen


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


def _mean_loss(means: Mapping[str, Any]) -> Any:
    """Return the loss among the means that upstream reports, by name; None where it reports none, as before the last
    stage.
    """
    if means and LOSS not in means:
        raise UnknownNameError(f"upstream reports {', '.join(map(repr, means))}, and no {LOSS!r}")
    return means.get(LOSS)


def _number(value: Any) -> float | None:
    return None if value is None else float(value)
