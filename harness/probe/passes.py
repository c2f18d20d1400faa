"""Passes over the micro-batches of a step with Megatron's schedule."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from megatron.core.pipeline_parallel import get_forward_backward_func
from megatron.core.tensor_parallel import vocab_parallel_cross_entropy
from torch import Tensor

from harness.core.cell.config import CellConfig
from harness.core.run.records import LegName
from harness.faults.node_fault import Fault
from harness.probe.model.gpt import unwrap
from harness.probe.model.groups import GLOBAL, Groups
from harness.probe.observer import LegInPass, Observer
from harness.probe.truth import StepTruth
from harness.runtime.recording.recorder import Recorder
from harness.upstreams.node_base import FORWARD, Adapter, Batch, RankContext, Scored, batch_given


class ChunkIterator:
    """The data path's iterators of a model chunk, by leg of the pass; the schedule passes it to the forward step."""

    def __init__(self, by_leg: dict[LegName, Iterator[Any] | None], chunk: int) -> None:
        self.by_leg = by_leg
        self.chunk = chunk


class Passes(Observer):
    """Runs passes over the model chunks, and observes them."""

    def __init__(
        self,
        chunks: list[Any],
        path: Adapter,
        context: RankContext,
        fault: Fault,
        recorder: Recorder,
        groups: Groups = GLOBAL,
    ) -> None:
        super().__init__(chunks, context, recorder)
        self.path, self.fault, self.groups = path, fault, groups

    def begin(self, truth: StepTruth, leg: LegName, *, keep_tokens: bool) -> list[ChunkIterator]:
        """Set up the next pass and return the data path's iterators, one per chunk. Collective: they may communicate.

        `leg`: the name in progress reports.
        """
        self.begin_pass(truth, leg, keep_tokens=keep_tokens)
        return self.iterators()

    def iterators(self) -> list[ChunkIterator]:
        """Return the data path's iterators over the announced pass. Collective, so they are made before the pass."""
        chunks = range(len(self.chunks))
        by_leg = {leg.leg: [self.path.iterator(leg.truth, chunk) for chunk in chunks] for leg in self.legs}
        return [ChunkIterator({leg: by_chunk[chunk] for leg, by_chunk in by_leg.items()}, chunk) for chunk in chunks]

    def _enter(self, leg: LegInPass) -> None:
        super()._enter(leg)
        # `_enter` is called for each micro-batch, a fault must hear of a leg once.
        if leg.truth.leg is not None and leg.truth.leg is not self.fault.leg:
            self.fault.on_leg(self.context, leg.truth.leg)

    def run(self, iterators: list[ChunkIterator], *, micro_batches: int, forward_only: bool) -> None:
        """Zero the gradients and run the schedule, which reduces gradients at its end unless `forward_only`.

        Does not synchronise with the GPU and, after step 0, does not write the record. Call `read_losses` afterwards.
        """
        for chunk in self.chunks:
            chunk.zero_grad_buffer()
        with self.groups.hidden():
            get_forward_backward_func()(
                forward_step_func=self._forward_step,
                data_iterator=iterators if len(iterators) > 1 else iterators[0],
                model=self.chunks if len(self.chunks) > 1 else self.chunks[0],
                num_microbatches=micro_batches,
                seq_length=self.context.config.train.seq_length,
                micro_batch_size=self.context.config.micro_batch_size,
                forward_only=forward_only,
                **self.groups.arguments,
            )
        self.progress("reduce")
        if not forward_only:
            # After the schedule, which has reduced them: a fault here is one of the reduction.
            self.fault.on_gradients(self.chunks, self.context)
        self.backward = not forward_only

    def _forward_step(self, iterator: ChunkIterator, model: Any, *_: Any) -> tuple[Tensor, Any]:
        """Run Megatron's forward_step_func (pretrain_gpt.forward_step): (output tensor, loss function)."""
        chunk = iterator.chunk
        # Before the fetch: if it crashes or hangs, the progress file names this micro-batch.
        number = self.fetching(chunk)
        data = iterator.by_leg[self.current.leg]
        if script := getattr(self.path, "forward_step", None):
            return self._step_of_script(partial(script, data), model, chunk, number)
        # Data paths read the global groups, as in a trainer; only the model is given its own.
        with self.groups.shown():
            fetched = self.path.fetch(data, chunk)
            batch = self.fault.on_batch(fetched, self.context, chunk, number)
        owners = self.entering(chunk, number)
        return forward(model, batch, self.context.config), partial(self._loss, batch, owners)

    def _step_of_script(self, script: Any, model: Any, chunk: int, number: int) -> tuple[Tensor, Any]:
        """Run `_forward_step` by upstream's script.

        Its call of the model is changed only by faults and label smoothing.
        """
        names = list(inspect.signature(unwrap(model).forward).parameters)
        smoothing = self.context.config.train.label_smoothing
        entered: list[tuple[Tensor | None, Batch, Tensor]] = []  # the loss mask that the script gave, and the rest

        def enter(_: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
            original = batch_given({**dict(zip(names, args)), **kwargs})
            batch = self.fault.on_batch(original, self.context, chunk, number)
            changed = {
                name: getattr(batch, field)
                for field, name in FORWARD.items()
                if getattr(batch, field) is not getattr(original, field)
            }
            changed |= {"labels": None} if smoothing else {}
            entered.append((original.loss_mask, batch, self.entering(chunk, number)))
            # The script runs with the groups shown, but the model it calls must not see them.
            inside.enter_context(self.groups.hidden())
            args = tuple(changed.pop(name, value) for name, value in zip(names, args))
            return args, {**kwargs, **changed}

        def leave(_: Any, args: Any, output: Tensor) -> Tensor:
            inside.close()
            smooths = smoothing and unwrap(model).post_process
            return smoothed(output, entered[-1][1].labels, smoothing) if smooths else output

        with self.groups.shown(), ExitStack() as inside:
            hooks = (
                # First, so that other hooks on the model see what the fault has changed.
                model.register_forward_pre_hook(enter, with_kwargs=True, prepend=True),
                model.register_forward_hook(leave),
            )
            output, mask, loss = script(model)
            for hook in hooks:
                hook.remove()
        given_mask, batch, owners = entered[-1]
        # A fault that changed the mask has the last word; otherwise the script's own mask counts, which it may have
        # derived.
        mask = mask if batch.loss_mask is given_mask else batch.loss_mask
        return output, partial(self._loss, replace(batch, loss_mask=mask, loss=loss), owners)

    def _loss(self, batch: Batch, owners: Tensor, output: Tensor) -> tuple[Any, ...]:
        returned = self._own_loss(batch, owners, output) if batch.score is None else self._scored(batch, owners, output)
        self.on_returned(returned)
        return returned

    def _scored(self, batch: Batch, owners: Tensor, output: Tensor) -> tuple[Any, ...]:
        """Return what upstream's loss returns."""
        scored: Scored = batch.score(output)
        self.on_loss(scored.losses, scored.weights, owners)
        loss, *tokens = scored.returned
        # Without calculate_per_token_loss upstream returns no count, but a fault of the loss needs one.
        count = tokens[0] if tokens else scored.weights.sum().to(torch.int)
        loss, count = self.fault.on_loss(loss, count, self.context)
        return loss, *([count] if tokens else []), {"lm loss": loss.detach().double()}

    def _own_loss(self, batch: Batch, owners: Tensor, output: Tensor) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
        """Return (sum, token count, report) of pretrain_gpt.loss_func, or as it; output [rows, local slots]: losses."""
        assert batch.loss_mask is not None
        losses, mask = output.float(), batch.loss_mask.float()
        if batch.loss is None:
            loss, tokens = (losses * mask).sum(), mask.sum().to(torch.int)
        else:
            loss, tokens, _ = batch.loss(batch.loss_mask, output)
        self.on_loss(losses, mask, owners)
        loss, tokens = self.fault.on_loss(loss, tokens, self.context)
        report = torch.stack([loss.detach().double(), tokens.double()])
        return loss, tokens, {"lm loss": report}


def forward(model: Any, batch: Batch, config: CellConfig) -> Tensor:
    """Call a model chunk as Megatron-LM's pretrain_gpt.forward_step does.

    A model with vision gets the arguments that upstream's step passes it, and may return its part of the loss mask too.
    Returns losses per token [rows, local slots] for the last chunk, or logits if upstream's loss takes them; for other
    chunks hidden states [s, b, h].
    """
    if batch.whole is not None:
        returned = model(**batch.whole)
        losses: Tensor = returned[0] if isinstance(returned, tuple) else returned
        return losses
    smoothing = config.train.label_smoothing
    # Upstream passes the mask only to models with prediction layers; releases differ in what others do with it.
    more: dict[str, Any] = {"loss_mask": batch.loss_mask} if config.model.mtp else {}
    more |= {"padding_mask": batch.padding_mask} if config.model.padding_mask else {}
    # Without labels the model returns logits.
    more |= {"labels": None if smoothing else batch.labels, **(batch.arguments or {})}
    output: Tensor = model(batch.tokens, batch.position_ids, None, packed_seq_params=batch.params, **more)
    return smoothed(output, batch.labels, smoothing) if smoothing and unwrap(model).post_process else output


def smoothed(logits: Tensor, labels: Tensor | None, smoothing: float) -> Tensor:
    """Return the losses per token [rows, local slots] of logits [rows, local slots, this rank's part of the
    vocabulary].

    Upstream's model computes its loss without smoothing. Whoever wants it passes the logits to this function of
    upstream, as frameworks for reinforcement learning do for log-probabilities.
    """
    assert labels is not None
    losses = vocab_parallel_cross_entropy(
        # As in compute_language_model_loss: the cross-entropy takes [slots, rows].
        logits.transpose(0, 1).contiguous(),
        labels.transpose(0, 1).contiguous(),
        smoothing,
    )
    return losses.transpose(0, 1).contiguous()  # type: ignore[no-any-return]
