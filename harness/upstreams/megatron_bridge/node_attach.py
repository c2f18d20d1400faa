"""Observes Megatron-Bridge while its pretrain() or finetune() runs. The wrappers: upstreams/node_wrappers.py.

| wrapped | why |
|---|---|
| training.pretrain.setup | its result holds the model and the optimizer; its callers show the entry point |
| training.setup._create_peft_pre_wrap_hook | with adapters, the checkpoint that its result loads is written first |
| training.gpt_step.get_batch | the loss mask, which the model does not get |
| training.train: train_step, training_log; training.eval: evaluate | as with every trainer |
| training.utils.flop_utils.num_floating_point_operations | its arguments are what upstream counted of the step |
| training.utils.train_utils.print_rank_last | the line that training_log prints |
| training.eval.prepare_forward_step_func | its result is the forward_step_func of an evaluation |
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from types import FrameType
from typing import Any

from torch import Tensor

from harness.core.cell.reports import counting_ranks
from harness.core.run.run_dir import AttemptDir
from harness.probe.weights import forget
from harness.runtime.recording.recorder import Recorder
from harness.upstreams.node_base import Batch, RankContext
from harness.upstreams.node_wrappers import Arguments, Wrappers

_TRAINING = "megatron.bridge.training."


class Attached(Wrappers):
    """The wrappers of one rank."""

    mask: Tensor | None  # of the last batch
    counted: dict[str, Any]  # arguments of num_floating_point_operations in the step in progress
    flops: float  # of all steps so far

    def __init__(self, context: RankContext, recorder: Recorder) -> None:
        super().__init__(context, recorder)
        recorder.record.counts_packed = True
        pretrain, step, train, evaluation = (_module(name) for name in ("pretrain", "gpt_step", "train", "eval"))
        self.wrap(pretrain, "setup", self._setup)
        if context.config.model.peft:
            self.wrap(_module("setup"), "_create_peft_pre_wrap_hook", self._before_adapters)
        self.wrap(step, "get_batch", self._get_batch)
        self.wrap(train, "train_step", self.train_step)
        self.wrap(train, "training_log", self._training_log)
        self.wrap(
            evaluation, "evaluate", lambda upstream, *args, **more: self.evaluate(partial(upstream, *args, **more))
        )
        self.wrap(evaluation, "prepare_forward_step_func", self._prepared)
        self.wrap(_module("utils.flop_utils"), "num_floating_point_operations", self._count)
        self.wrap(_module("utils.train_utils"), "print_rank_last", self.print_line)

    def batch(self, arguments: dict[str, Any]) -> Batch:
        return replace(super().batch(arguments), loss_mask=self.mask)

    def _setup(self, upstream: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        self.recorder.record.entry_point = _outermost(sys._getframe())
        setup_output = upstream(*args, **kwargs)
        self.flops = float(setup_output.state.train_state.floating_point_operations_so_far)  # of a checkpoint's steps
        self.built(setup_output.model, setup_output.optimizer, setup_output.scheduler)
        return setup_output

    def _before_adapters(self, upstream: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Return upstream's hook on the bare model, which loads its weights from a checkpoint and adds adapters."""
        hook = upstream(*args, **kwargs)
        path = AttemptDir(self.context.folder).pretrained

        def saved_first(model: list[Any]) -> Any:
            if not self.context.config.start_step:
                self.initialize(model)
                _module("model_load_save").save_megatron_model(model, path)
                # So that weights that training starts with can only come from the checkpoint.
                forget(model)
            return hook(model)

        return saved_first

    def _prepared(self, upstream: Callable[..., Any], *args: Any) -> Any:
        return partial(self.forward_step, upstream(*args))

    def _get_batch(self, upstream: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        batch = upstream(*args, **kwargs)
        _, _, mask, *_ = batch  # tokens, labels, loss_mask
        self.mask = None if mask is None else mask.float()  # as upstream's loss function reads it
        return batch

    def _training_log(self, upstream: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        arguments = Arguments(upstream, *args, **kwargs)
        state = arguments["global_state"].train_state
        counted = self._counted(float(state.floating_point_operations_so_far))
        self.report(
            arguments, int(state.step) - 1, int(state.consumed_train_samples), **counted
        )  # upstream counts from 1
        return self.logging(partial(upstream, *args, **kwargs))

    def _counted(self, flops: float) -> dict[str, float | None]:
        """Return what the first stage counted of a step; `flops`: of all steps so far."""
        # Upstream keeps a running total only.
        before, self.flops = self.flops, flops
        if not counting_ranks(self.context.config, self.context.place.pp):
            return {}
        tokens, squares = self.counted["seqlen_sum"], self.counted["seqlen_squared_sum"]
        return {"flops": flops - before, "packed_tokens": tokens, "packed_squares": squares}

    def _count(self, upstream: Callable[..., float], *args: Any, **kwargs: Any) -> float:
        self.counted = Arguments(upstream, *args, **kwargs)
        return upstream(*args, **kwargs)


def _outermost(frame: FrameType | None) -> str:
    """Return the first function of megatron.bridge.training among those that led to the frame."""
    outermost = ""
    while frame is not None:
        module = str(frame.f_globals.get("__name__"))
        outermost = f"{module}.{frame.f_code.co_name}" if module.startswith(_TRAINING) else outermost
        frame = frame.f_back
    return outermost


def _module(name: str) -> Any:
    return importlib.import_module(f"{_TRAINING}{name}")
