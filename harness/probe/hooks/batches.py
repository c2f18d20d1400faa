"""Batches as a data path returns them, compared with the plan: fields, log-probabilities."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from harness.core.packing.arithmetic import PAD
from harness.core.packing.fields import PADDING_MASK
from harness.core.run.records import BatchSeen, TensorSeen
from harness.probe.truth import MicroTruth, StepTruth, first_difference
from harness.runtime.recording.recorder import Recorder
from harness.upstreams.node_base import Batch, RankContext


def batch_seen(
    batch: Batch, truth: StepTruth, context: RankContext, recorder: Recorder, chunk: int, number: int
) -> BatchSeen:
    """Return the record of micro-batch `number` of this rank; its packed params go into the record's table."""
    micro = truth.micro_batches[number]
    cp, cp_rank = context.config.layout.cp, context.place.cp
    owners = micro.local(micro.owners, cp, cp_rank)
    beside = {name: value for name, value in (batch.beside or {}).items() if value is not None}

    def counted(name: str) -> Tensor:
        """Return the slots compared: for labels the unmasked ones, for masks all, for other fields those with
        tokens.
        """
        # A mask is as wrong where it lets padding count as where it drops a token.
        if name in ("loss_mask", PADDING_MASK):
            return torch.ones(owners.shape[:-1], dtype=torch.bool)
        # Upstream may put anything into slots that no loss reads, and releases differ in what they put there.
        return micro.local(micro.loss_mask, cp, cp_rank) > 0 if name == "labels" else owners[..., 0] != PAD

    def against(name: str) -> TensorSeen | None:
        actual: Tensor | None = getattr(batch, name)
        actual = beside.pop(name, None) if actual is None else actual
        if actual is None:
            return None
        expected = micro.local(getattr(micro, name), cp, cp_rank)
        shape, dtype = list(actual.shape), str(actual.dtype)
        # Vision models get [3, rows, slots]: position in time, height and width; the plan has those last.
        if name == "position_ids" and actual.dim() == 3:
            actual = actual.permute(1, 2, 0)
        if actual.shape != expected.shape:
            return TensorSeen(shape=shape, dtype=dtype, mismatches=expected.numel())
        count, first = first_difference(actual.cpu(), expected, owners, counted(name))
        return TensorSeen(shape=shape, dtype=dtype, mismatches=count, first=first)

    seen = BatchSeen(
        step=truth.step,
        chunk=chunk,
        micro_batch=number,
        params=recorder.params(batch.params),
        tokens=against("tokens"),
        labels=against("labels"),
        loss_mask=against("loss_mask"),
        position_ids=against("position_ids"),
        padding_mask=against(PADDING_MASK),
    )
    # What this release's batch does not have must reach the report, or its absence would look like agreement.
    recorder.not_read((*batch.not_read, *beside))
    return seen


LOWEST = -4.0  # log-probabilities are spaced evenly in [LOWEST, LOWEST / 4]


# Whether a data path that unpacks log-probabilities returns each one for the right token.
#
# Synthetic logits replace the model: the next token of each slot gets a log-probability that is unique in the micro-
# batch, so each returned value identifies the slot for which it was computed.
def log_probs_returned(path: Any, micro: MicroTruth, context: RankContext, batch: Batch) -> TensorSeen | None:
    """Return the comparison with the expected values; None when the path returns no log-probabilities.

    `first` of the result: [document, position, expected slot, found slot or -1].
    """
    if not hasattr(path, "log_probs"):
        return None
    values = slot_values(micro.plan.slots)
    padded = getattr(batch.params, "cu_seqlens_q_padded", None)
    if padded is not None and int(padded[-1]) != micro.plan.slots:  # other documents, which have no logits here
        return TensorSeen(shape=[int(padded[-1])], dtype=str(values.dtype), mismatches=micro.plan.slots)
    returned = path.log_probs(micro, batch, _logits(micro, context, values))
    if len(returned) != len(micro.plan.placed):
        return TensorSeen(shape=[len(returned)], dtype=str(values.dtype), mismatches=micro.plan.slots)
    count, first = 0, None
    for placed, scores in zip(micro.plan.placed, returned, strict=True):
        scored = placed.document.length - 1 + micro.plan.style.last_token_slots
        expected = values[placed.start : placed.start + scored]
        actual = scores.detach().double().cpu()
        if actual.shape != expected.shape:
            return TensorSeen(shape=list(actual.shape), dtype=str(scores.dtype), mismatches=len(expected))
        # A quarter of the distance between two slots' values: float32 logits stay well inside, and no other slot's
        # value does.
        right = (actual - expected).abs() <= _step(len(values)) / 4  # NaN is not
        wrong = (~right).nonzero().flatten().tolist()
        if wrong and first is None:
            nearest = int((values - actual[wrong[0]]).abs().argmin())
            is_known = abs(float(values[nearest] - actual[wrong[0]])) <= _step(len(values)) / 4
            first = [placed.document.index, wrong[0], placed.start + wrong[0], nearest if is_known else -1]
        count += len(wrong)
    return TensorSeen(shape=[len(values)], dtype=str(returned[0].dtype), mismatches=count, first=first)


def slot_values(slots: int) -> Tensor:
    """Return [slots] float64: the log-probability of each slot's next token."""
    return torch.linspace(LOWEST, LOWEST / 4, slots, dtype=torch.float64)


def _step(slots: int) -> float:
    return -LOWEST * 3 / 4 / max(slots - 1, 1)


def _logits(micro: MicroTruth, context: RankContext, values: Tensor) -> Tensor:
    """Return [rows, local slots, vocabulary / tp] float32: 0 except at the next token."""
    layout, vocab = context.config.layout, context.config.model.vocab
    # Upstream's vocab-parallel log-probability takes this rank's part of the vocabulary and reduces over tp.
    share = vocab // layout.tp
    labels = micro.local(micro.labels, layout.cp, context.place.cp)
    local_values = micro.local(values, layout.cp, context.place.cp)
    # softmax of a token with logit x, and 0 elsewhere: exp(x) / (exp(x) + vocab - 1) = exp(value)
    heights = local_values + math.log(vocab - 1) - torch.log1p(-local_values.exp())
    logits = torch.zeros(*labels.shape, vocab)
    logits.scatter_(-1, labels[..., None], heights[..., None].float())
    return logits[..., context.place.tp * share : (context.place.tp + 1) * share].to(context.device.torch_device)
