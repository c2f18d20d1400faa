"""Observes SkyRL's Megatron policy worker while it trains. The wrappers: upstreams/node_wrappers.py.

| wrapped | why |
|---|---|
| get_forward_backward_func of megatron_model_wrapper | forward_step_func, an argument of the schedule that it returns |
| apply of DistributedLogprob, ChunkedDistributedLogprob | labels of this rank's slots, and their log-probabilities |
| from_parallel_logits_to_logprobs_packed_sequences | the log-probabilities as the loss gets them: by document |
| the loss function that forward_step returns | the loss mask, in the data that it is given |

SkyRL's loss function gets log-probabilities of whole documents on every context-parallel rank. What the record holds of
a loss are the log-probabilities of the rank's own slots, before SkyRL gathers them.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Any

from torch import Tensor

from harness.probe.hooks.batches import batch_seen
from harness.runtime.recording.recorder import Recorder
from harness.upstreams.node_base import Batch, RankContext
from harness.upstreams.node_wrappers import Wrappers
from harness.upstreams.skyrl.node_documents import by_slot, log_probs_seen, loss_scale

HOME = "skyrl.backends.skyrl_train"


class Attached(Wrappers):
    """The wrappers of one rank."""

    labels: Tensor  # of the last loss, [1, local slots]
    scores: Tensor  # log-probabilities of the labels, [1, local slots]
    returned: Tensor  # log-probabilities of the labels by document, [documents, columns - 1]
    updated: bool  # whether the optimizer made an update in the step in progress

    def __init__(self, context: RankContext, recorder: Recorder) -> None:
        super().__init__(context, recorder)
        self.consumed = 0
        model, scoring = _module("workers.megatron.megatron_model_wrapper"), _module("distributed.megatron.model_utils")
        self.wrap(model, "get_forward_backward_func", self._schedule)
        self.wrap(model, "from_parallel_logits_to_logprobs_packed_sequences", self._return)
        for name in ("DistributedLogprob", "ChunkedDistributedLogprob"):  # the second one for rows beyond a limit
            kernel = getattr(scoring, name)
            # Only `apply` is used of it; an autograd.Function cannot be wrapped otherwise.
            setattr(scoring, name, SimpleNamespace(apply=partial(self._score, kernel.apply)))

    def train(self, worker: Any, batch: Any) -> None:
        """Run a step, called as SkyRL's SFT trainer calls it."""
        step, self.updated = self.step, False
        with self.stepping():
            done = worker.forward_backward(batch, loss_fn="cross_entropy", return_per_token_outputs=False)
            rate = worker.get_lr()  # optim_step sets that of the next step
            norm = worker.optim_step()
        self.consumed += len(batch) * worker.mesh_rank.dp_size
        reported = {
            "loss_dict": {"lm loss": done.metrics.get("loss")} if self.context.is_last(0) else {},
            "skipped_iter": not self.updated,
            "loss_scale": worker.optimizer.get_loss_scale(),
            "grad_norm": norm,
            "learning_rate": _unrounded(done.metrics.get("policy_lr"), rate),
        }
        self.report(reported, step, self.consumed)

    def batch(self, arguments: dict[str, Any]) -> Batch:
        """Return the batch.

        Stages after the first get tokens that they do not read: SkyRL packs them on the first one only.
        """
        batch = super().batch(arguments)
        return batch if self.context.reads_tokens(0) else replace(batch, tokens=None)

    def observed_loss(self, upstream: Any, owners: Tensor) -> Callable[..., Any]:
        return partial(self._documents_loss, upstream, owners)

    def _documents_loss(self, upstream: Any, owners: Tensor, output: Tensor, *args: Any) -> Any:
        returned = upstream(output, *args)
        observer, layout, cp = self.observer, self.context.config.layout, self.context.place.cp
        number, record = observer.state.micro_batch, self.batch_record
        micro = observer.truth.micro_batches[number]
        # Back to 0 and 1: SkyRL's collator has divided the mask by the tokens of the step.
        weights = upstream.keywords["data"]["loss_mask"].float().cpu() / loss_scale(observer.truth)
        slots = partial(by_slot, micro=micro, controlled=self.context.config.options.use_sequence_packing)
        mask = micro.local(slots(weights), layout.cp, cp)
        batch = Batch(labels=self.labels, loss_mask=mask)
        compared = batch_seen(batch, observer.truth, self.context, self.recorder, record.chunk, number)
        record.labels, record.loss_mask = compared.labels, compared.loss_mask
        record.log_probs = log_probs_seen(slots(self.returned), self.scores, micro, layout.cp, cp)
        observer.on_loss(-self.scores, mask.to(self.scores.device), owners)
        observer.on_returned(returned)
        return returned

    def _schedule(self, upstream: Callable[..., Any], *args: Any, **kwargs: Any) -> Callable[..., Any]:
        return partial(self._run_schedule, upstream(*args, **kwargs))

    def _run_schedule(self, upstream: Callable[..., Any], *, forward_step_func: Any, **kwargs: Any) -> Any:
        return upstream(forward_step_func=partial(self.forward_step, forward_step_func), **kwargs)

    def _score(self, upstream: Callable[..., Tensor], logits: Tensor, labels: Tensor, *args: Any) -> Tensor:
        scores = upstream(logits, labels, *args)
        self.labels, self.scores = labels, scores.detach()
        return scores

    def _return(self, upstream: Callable[..., Tensor], *args: Any, **kwargs: Any) -> Tensor:
        returned = upstream(*args, **kwargs)
        self.returned = returned.detach()
        return returned

    def _update(self, upstream: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        result = super()._update(upstream, *args, **kwargs)
        self.updated = bool(result[0])  # SkyRL drops it
        return result


def _unrounded(reported: float | None, rate: float) -> float | None:
    """Return the learning rate that SkyRL reports, or `rate` if the two differ only because SkyRL averages it in
    float32.
    """
    return rate if reported is not None and math.isclose(reported, rate, rel_tol=1e-6) else reported


def _module(name: str) -> Any:
    return importlib.import_module(f"{HOME}.{name}")
