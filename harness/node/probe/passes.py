"""Passes over the micro-batches of a step with Megatron's schedule; keeps the losses of the last stage."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from megatron.core.pipeline_parallel import get_forward_backward_func
from torch import Tensor

from harness.core.cell.config import CellConfig
from harness.core.packing.arithmetic import PAD
from harness.core.run.record_limits import MOST_TOKEN_LOSSES
from harness.core.run.records import DocumentLoss, ParameterSeen, TokenLoss
from harness.core.run.states import LegName, Phase
from harness.node.data_paths.base import Adapter, Batch, RankContext
from harness.node.faults import Fault
from harness.node.probe.hooks.fingerprints import gradient_fingerprint, part_fingerprints
from harness.node.probe.hooks.layers import LayerRecorder, PassState
from harness.node.probe.hooks.parts import record_parts
from harness.node.probe.hooks.recompute import Recomputed
from harness.node.probe.model.distributed_optimizer import whole_gradients
from harness.node.probe.model.gpt import expert_rank, unwrap
from harness.node.probe.truth import StepTruth
from harness.node.probe.weights import NamedParameter, named_parameters
from harness.node.recording.recorder import Recorder


class ChunkIterator:
    """An iterator tagged with its model chunk; the schedule passes it to the forward step."""

    def __init__(self, inner: Iterator[Any] | None, chunk: int) -> None:
        self.inner = inner
        self.chunk = chunk


@dataclass(kw_only=True)
class Losses:
    """Losses of a pass on the last stage, over this rank's tokens, in float64.

    `pending`: tensors not read from the device yet, since that synchronises with the GPU; see `Passes.read_losses`.
    """

    loss_sum: float = 0.0
    token_count: float = 0.0
    documents: dict[int, DocumentLoss] = field(default_factory=dict)
    tokens: list[TokenLoss] = field(default_factory=list)
    pending: list[tuple[Tensor, Tensor, Tensor]] = field(default_factory=list)  # losses, mask, owners


class Passes:
    """Owns the model chunks with the probe's hooks, and runs passes over them."""

    def __init__(
        self, chunks: list[Any], path: Adapter, context: RankContext, fault: Fault, recorder: Recorder
    ) -> None:
        self.chunks, self.path, self.context = chunks, path, context
        self.fault, self.recorder = fault, recorder
        self.state = PassState()
        self.gathered: dict[Tensor, Tensor] = {}  # parameter -> its gathered gradient, if gradients are sharded
        plain = [unwrap(chunk) for chunk in chunks]
        self.recomputed = Recomputed(plain, context, self.state)  # first: later hooks read the position that it sets
        self.layer_recorder = LayerRecorder(plain, context, self.state, recorder)
        record_parts(plain, context, self.state, recorder)

    def begin(self, truth: StepTruth, leg: LegName, *, keep_tokens: bool) -> list[ChunkIterator]:
        """Set up the next pass and return the data path's iterators, one per chunk. Collective: they may communicate.

        `leg`: the name in progress reports.
        """
        self.truth, self.counts, self.keep_tokens = truth, [0] * len(self.chunks), keep_tokens
        self.losses = Losses()
        self.recomputed.begin()
        self.state.step, self.state.leg = truth.step, leg
        self.recorder.progress(leg, truth.step, 0, "start")
        return [ChunkIterator(self.path.iterator(truth, number), number) for number in range(len(self.chunks))]

    def run(self, iterators: list[ChunkIterator], *, micro_batches: int, forward_only: bool) -> None:
        """Zero the gradients and run the schedule, which reduces gradients at its end unless `forward_only`.

        Does not synchronise with the GPU and, after step 0, does not write the record. Call `read_losses` afterwards.
        """
        for chunk in self.chunks:
            chunk.zero_grad_buffer()
        get_forward_backward_func()(
            forward_step_func=self._forward_step,
            data_iterator=iterators if len(iterators) > 1 else iterators[0],
            model=self.chunks if len(self.chunks) > 1 else self.chunks[0],
            num_microbatches=micro_batches,
            seq_length=self.context.config.train.seq_length,
            micro_batch_size=self.context.config.micro_batch_size,
            forward_only=forward_only,
        )
        self.progress("reduce")
        if not forward_only:
            self.fault.on_gradients(self.chunks, self.context)
        self.backward = not forward_only

    def progress(self, phase: Phase) -> None:
        """Note a phase that follows the last micro-batch."""
        self.recorder.progress(self.state.leg, self.truth.step, len(self.truth.plans), phase)

    def named_parameters(self) -> Iterator[NamedParameter]:
        """Parameters of all chunks of this rank."""
        tp = self.context.config.layout.tp
        for chunk in self.chunks:
            plain = unwrap(chunk)
            yield from named_parameters(plain, tp_rank=self.context.place.tp, tp_size=tp, ep_rank=expert_rank())

    def gradient_of(self, item: NamedParameter) -> Tensor:
        """The reduced gradient of a parameter; gathered if the ranks of dp x cp hold shards of it."""
        found = self.gathered.get(item.parameter)
        gradient: Tensor = item.parameter.main_grad if found is None else found  # type: ignore[attr-defined]
        return gradient

    def parameters_seen(self) -> list[ParameterSeen]:
        """Fingerprints of the current gradients."""
        return [self._parameter_seen(item) for item in self.named_parameters()]

    def _parameter_seen(self, item: NamedParameter) -> ParameterSeen:
        config, gradient = self.context.config, self.gradient_of(item)
        alone = config.layout.world_size == 1  # such as the control, with which others are compared shard by shard
        return ParameterSeen(
            name=item.name,
            sharded=item.shard.dim is not None,
            gradient=gradient_fingerprint(item, gradient, config.train.seed),
            parts=part_fingerprints(item, gradient, config.train.seed) if alone else [],
        )

    def _forward_step(self, iterator: ChunkIterator, model: Any, *_: Any) -> tuple[Tensor, Any]:
        """Megatron's forward_step_func (pretrain_gpt.forward_step): (output tensor, loss function)."""
        chunk = iterator.chunk
        number = self.counts[chunk]
        self.counts[chunk] += 1
        at = self.state
        self.recorder.progress(at.leg, at.step, number, "fetch")
        batch = self.fault.on_batch(self.path.fetch(iterator.inner, chunk), self.context, chunk, number)
        micro = self.truth.micro_batches[number]
        at.chunk, at.micro_batch = chunk, number
        at.owners = micro.local(micro.owners, self.context.config.layout.cp, self.context.place.cp)
        self.recorder.progress(at.leg, at.step, number, "forward")
        if at.first_step:  # later steps are timed; their records are written at the end of the step
            self.recorder.flush()
        at.rows = micro.local(micro.row_numbers, self.context.config.layout.cp, self.context.place.cp)
        return forward(model, batch, self.context.config), partial(self._loss, batch, at.owners)

    def _loss(self, batch: Batch, owners: Tensor, output: Tensor) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
        """(sum, token count, report) as pretrain_gpt.loss_func per token; output [rows, local slots]: losses."""
        assert batch.loss_mask is not None
        losses, mask = output.float(), batch.loss_mask.float()
        loss = (losses * mask).sum()
        tokens = mask.sum().to(torch.int)
        self.losses.pending.append((losses.detach().clone(), mask.clone(), owners))
        at = self.state
        self.recorder.progress(at.leg, at.step, at.micro_batch, "backward")
        loss, tokens = self.fault.on_loss(loss, tokens, self.context)
        report = torch.stack([loss.detach().double(), tokens.double()])
        return loss, tokens, {"lm loss": report}

    def read_losses(self) -> Losses:
        """Read the losses of the last pass from the device, and gather its gradients if they are sharded."""
        self.gathered = whole_gradients(self.chunks) if self.backward else {}
        pending, self.losses.pending = self.losses.pending, []
        for losses, mask, owners in pending:
            self.losses.loss_sum += float((losses * mask).sum())
            self.losses.token_count += float(mask.sum().to(torch.int))
            if self.context.place.tp == 0:
                self._record_losses(losses.cpu(), mask.cpu(), owners)
        return self.losses

    def _record_losses(self, losses: Tensor, mask: Tensor, owners: Tensor) -> None:
        if losses.shape != owners.shape[:-1]:
            return  # wrong shape; the metadata lane reports it
        documents, positions = owners.flatten(0, 1).unbind(1)
        losses, mask = losses.flatten().double(), mask.flatten().double()
        for document in set(documents.tolist()):
            if document == PAD:
                continue
            mine = documents == document
            seen = self.losses.documents.setdefault(document, DocumentLoss(loss_sum=0.0, tokens=0))
            seen.loss_sum += float((losses * mask)[mine].sum())
            seen.tokens += int(mask[mine].sum())
        if self.keep_tokens and len(self.losses.tokens) < MOST_TOKEN_LOSSES:
            counted = ((mask > 0) & (documents != PAD)).nonzero().flatten().tolist()
            rows = zip(documents[counted].tolist(), positions[counted].tolist(), losses[counted].tolist())
            self.losses.tokens += [TokenLoss(document=d, position=p, loss=value) for d, p, value in rows]


def forward(model: Any, batch: Batch, config: CellConfig) -> Tensor:
    """Call a model chunk as Megatron-LM's pretrain_gpt.forward_step does.

    Returns losses per token [rows, local slots] for the last chunk, else hidden states [s, b, h].
    """
    more = {"loss_mask": batch.loss_mask} if config.model.mtp else {}
    more |= {"padding_mask": batch.padding_mask} if config.model.padding_mask else {}
    output: Tensor = model(
        batch.tokens, batch.position_ids, None, labels=batch.labels, packed_seq_params=batch.params, **more
    )
    return output
