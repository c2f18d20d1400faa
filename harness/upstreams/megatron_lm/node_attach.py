"""Observes megatron.training.training while pretrain_gpt.py runs. The wrappers: upstreams/node_wrappers.py.

| wrapped | why |
|---|---|
| setup_model_and_optimizer | its results are the model and the optimizer |
| wrap_data_iterator, where there is one | what the packing scheduler counts of a step |
| train_step, training_log, evaluate, num_floating_point_operations, print_rank_last | as with every trainer |
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial
from typing import Any

from harness.core.run.records import WorkloadSeen
from harness.runtime.recording.recorder import Recorder
from harness.upstreams.node_base import RankContext
from harness.upstreams.node_wrappers import Arguments, Wrappers

_TOKENS, _SQUARES = "total_real_tokens_in_batch", "seqlen_squared_sum_in_batch"  # arguments of training_log


class Attached(Wrappers):
    """The wrappers of one rank; `training`: the module megatron.training.training."""

    flops: float  # of the step in progress, as upstream counts it

    def __init__(self, training: Any, context: RankContext, recorder: Recorder) -> None:
        super().__init__(context, recorder)
        self.training = training
        recorder.record.counts_packed = _TOKENS in inspect.signature(training.training_log).parameters
        self.wrap(training, "setup_model_and_optimizer", self._setup)
        self.wrap(training, "train_step", self.train_step)
        self.wrap(training, "training_log", self._training_log)
        self.wrap(training, "evaluate", self._evaluate)
        self.wrap(training, "num_floating_point_operations", self._count)
        self.wrap(training, "print_rank_last", self.print_line)
        if context.config.path.counts_work and hasattr(training, "wrap_data_iterator"):
            self.wrap(training, "wrap_data_iterator", self._schedule)

    def _setup(self, upstream: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        model, optimizer, scheduler = upstream(*args, **kwargs)
        self.built(model, optimizer, scheduler)
        return model, optimizer, scheduler

    def _schedule(self, upstream: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        schedule = upstream(*args, **kwargs)  # iterators, micro-batches, sum of lengths, sum of squared lengths
        # Evaluations are scheduled too, but the check of workloads has a plan for steps only.
        if self.observer.state.leg == "training":
            names = ("micro_batches", "tokens", "squares")
            counts = {name: float(count) for name, count in zip(names, schedule[1:], strict=True)}
            self.recorder.record.workloads.append(WorkloadSeen(leg="training", step=self.step, **counts))
        return schedule

    def _evaluate(self, upstream: Callable[..., Any], forward_step: Callable[..., Any], *args: Any, **more: Any) -> Any:
        return self.evaluate(partial(upstream, partial(self.forward_step, forward_step), *args, **more))

    def _training_log(self, upstream: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        arguments = Arguments(upstream, *args, **kwargs)
        consumed = int(self.training.get_args().consumed_train_samples)
        counted = {
            "flops": self.flops,
            "packed_tokens": arguments.get(_TOKENS),
            "packed_squares": arguments.get(_SQUARES),
        }
        self.report(arguments, arguments["iteration"] - 1, consumed, **counted)  # upstream counts from 1
        return self.logging(partial(upstream, *args, **kwargs))

    def _count(self, upstream: Callable[..., float], *args: Any, **kwargs: Any) -> float:
        self.flops = float(upstream(*args, **kwargs))
        return self.flops
