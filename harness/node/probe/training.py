"""Training leg: a few optimizer steps through Megatron's schedule, everything recorded that the checks need."""

from __future__ import annotations

import time
from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from megatron.core import parallel_state
from megatron.core.pipeline_parallel import get_forward_backward_func
from torch import Tensor

from harness.node.data_paths.base import Batch, DataPath, RankContext
from harness.node.device import synchronize
from harness.node.faults import Fault
from harness.node.probe.fingerprints import gradient_fingerprint, part_fingerprints
from harness.node.probe.model import unwrap
from harness.node.probe.truth import StepTruth
from harness.node.probe.weights import NamedParameter, named_parameters
from harness.node.probe.witness import Position, Witness
from harness.node.recorder import Recorder
from harness.words.packing import PAD
from harness.words.records import DocumentLoss, ParameterSeen, StepSeen, TokenLoss

MAX_TOKEN_LOSSES = 8192  # per rank; more would make the record larger than its worth


class TrainingLeg:
    """Owns the model chunks and runs the steps."""

    def __init__(
        self, chunks: list[Any], optimizer: Any, path: DataPath, context: RankContext, fault: Fault, recorder: Recorder
    ) -> None:
        self.chunks, self.optimizer, self.path = chunks, optimizer, path
        self.context, self.fault, self.recorder = context, fault, recorder
        self.position = Position()
        self.witness = Witness([unwrap(chunk) for chunk in chunks], context, self.position, recorder)
        self.chunk_numbers = {id(chunk): number for number, chunk in enumerate(chunks)}

    def run(self) -> None:
        for step in range(self.context.config.train.steps):
            self._step(step)

    def _step(self, step: int) -> None:
        truth = StepTruth(self.context.config, step, self.context.place.dp)
        self.truth, self.counts = truth, [0] * len(self.chunks)
        count = self.fault.micro_batches(len(truth.plans), self.context, step)
        self.sums = [0.0, 0.0]  # loss and tokens of this rank's micro-batches
        self.seen = StepSeen(
            step=step,
            micro_batches=count,
            real_tokens=sum(plan.real_tokens for plan in truth.plans),
            slots=sum(plan.slots for plan in truth.plans),
        )
        self.position.step = step
        self.recorder.progress("training", step, 0, "start")
        iterators = [_Owned(self.path.iterator(truth, number), number) for number in range(len(self.chunks))]
        synchronize(self.context.device)
        begin = time.perf_counter()
        for chunk in self.chunks:
            chunk.zero_grad_buffer()
        self.optimizer.zero_grad()
        self.fault.on_step(self.context, step)
        get_forward_backward_func()(
            forward_step_func=self._forward_step,
            data_iterator=iterators if len(iterators) > 1 else iterators[0],
            model=self.chunks if len(self.chunks) > 1 else self.chunks[0],
            num_microbatches=count,
            seq_length=self.context.config.train.seq_length,
            micro_batch_size=self.context.config.micro_batch_size,
            forward_only=False,
        )
        self.recorder.progress("training", step, len(truth.plans), "reduce")
        trained = time.perf_counter() - begin
        self.fault.on_gradients(self.chunks, self.context)
        self._observe(step)
        self.recorder.progress("training", step, len(truth.plans), "optimizer")
        begin = time.perf_counter()
        self.optimizer.step()
        synchronize(self.context.device)
        self.seen.time_s = trained + time.perf_counter() - begin
        self.recorder.record.steps.append(self.seen)
        self.recorder.flush()

    def _forward_step(self, iterator: _Owned, model: Any, *_: Any) -> tuple[Tensor, Any]:
        """Megatron's forward_step_func (pretrain_gpt.forward_step): (output tensor, loss function)."""
        chunk = iterator.chunk
        number = self.counts[chunk]
        self.counts[chunk] += 1
        at = self.position
        self.recorder.progress("training", at.step, number, "fetch")
        batch = self.fault.on_batch(self.path.fetch(iterator.inner, chunk), self.context, chunk, number)
        micro = self.truth.micro_batches[number]
        at.chunk, at.micro_batch = chunk, number
        at.owners = micro.local(micro.owners, self.context.config.layout.cp, self.context.place.cp)
        self.recorder.progress("training", at.step, number, "forward")
        self.recorder.flush()
        output = model(batch.tokens, batch.position_ids, None, labels=batch.labels, packed_seq_params=batch.params)
        return output, partial(self._loss, batch, at.owners)

    def _loss(self, batch: Batch, owners: Tensor, output: Tensor) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
        """Per-token mode (pretrain_gpt.loss_func): (sum, token count, report). output [rows, local slots] per token."""
        assert batch.loss_mask is not None
        losses, mask = output.float(), batch.loss_mask.float()
        loss = (losses * mask).sum()
        tokens = mask.sum().to(torch.int)
        self.sums = [self.sums[0] + float(loss.detach()), self.sums[1] + float(tokens)]
        if self.context.place.tp == 0:
            self._record_losses(losses.detach().cpu(), mask.cpu(), owners)
        self.recorder.progress("training", self.position.step, self.position.micro_batch, "backward")
        loss, tokens = self.fault.on_loss(loss, tokens, self.context)
        report = torch.stack([loss.detach().double(), tokens.double()])
        return loss, tokens, {"lm loss": report}

    def _record_losses(self, losses: Tensor, mask: Tensor, owners: Tensor) -> None:
        if losses.shape != owners.shape[:-1]:
            return  # the metadata lane reports the wrong shape
        documents, positions = owners.flatten(0, 1).unbind(1)
        losses, mask = losses.flatten().double(), mask.flatten().double()
        for document in set(documents.tolist()):
            if document == PAD:
                continue
            mine = documents == document
            seen = self.seen.documents.setdefault(document, DocumentLoss(loss_sum=0.0, tokens=0))
            seen.loss_sum += float((losses * mask)[mine].sum())
            seen.tokens += int(mask[mine].sum())
        if self.seen.step == 0 and len(self.seen.tokens) < MAX_TOKEN_LOSSES:
            counted = ((mask > 0) & (documents != PAD)).nonzero().flatten().tolist()
            rows = zip(documents[counted].tolist(), positions[counted].tolist(), losses[counted].tolist())
            self.seen.tokens += [TokenLoss(document=d, position=p, loss=value) for d, p, value in rows]

    def _observe(self, step: int) -> None:
        """After reduction, before the optimizer: gradient norm every step, fingerprints at step 0, global loss."""
        parameters = list(self._parameters())
        self.seen.grad_norm = _gradient_norm(parameters, self.context)
        if step == 0:
            self.recorder.record.parameters = [self._parameter_seen(item) for item in parameters]
            self.recorder.record.activations = [seen for _, seen in sorted(self.witness.activations.items())]
        self._global_loss()

    def _parameter_seen(self, item: NamedParameter) -> ParameterSeen:
        config, gradient = self.context.config, _gradient(item)
        alone = config.layout.world_size == 1  # what others are compared with, shard by shard
        return ParameterSeen(
            name=item.name,
            sharded=item.shard.dim is not None,
            gradient=gradient_fingerprint(item, gradient, config.train.seed),
            parts=part_fingerprints(item, gradient, config.train.seed) if alone else [],
        )

    def _parameters(self) -> Iterator[NamedParameter]:
        tp = self.context.config.layout.tp
        for chunk in self.chunks:
            yield from named_parameters(unwrap(chunk), tp_rank=self.context.place.tp, tp_size=tp)

    def _global_loss(self) -> None:
        """Sum of loss and token count over all replicas and context ranks; last stage only."""
        if not self.context.is_last(len(self.chunks) - 1):
            return
        both = torch.tensor(self.sums, dtype=torch.float64, device=self.context.device.torch_device)
        dist.all_reduce(both, group=parallel_state.get_data_parallel_group(with_context_parallel=True))
        self.seen.loss_sum, self.seen.token_count = float(both[0]), int(both[1])


class _Owned:
    """An iterator that knows its model chunk; the schedule passes it through to the forward step."""

    def __init__(self, inner: Iterator[Any] | None, chunk: int) -> None:
        self.inner = inner
        self.chunk = chunk


def _gradient(item: NamedParameter) -> Tensor:
    gradient: Tensor = item.parameter.main_grad  # type: ignore[attr-defined]  # set by Megatron's DDP
    return gradient


def _gradient_norm(parameters: list[NamedParameter], context: RankContext) -> float:
    """Norm over the whole model before clipping: replicated parameters count once."""
    total = torch.zeros((), dtype=torch.float64, device=context.device.torch_device)
    for item in parameters:
        duplicate = item.shard.dim is None and context.place.tp > 0
        if not duplicate and not getattr(item.parameter, "shared", False):
            total += _gradient(item).double().square().sum()
    dist.all_reduce(total, group=parallel_state.get_model_parallel_group())
    return float(total.sqrt())
