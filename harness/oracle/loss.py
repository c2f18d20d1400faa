"""The loss of a step: cross entropy, losses of prediction layers and of routers, and what each is divided by.

With `per_token` (Megatron's calculate_per_token_loss) everything is divided by the tokens of the step. Without it the
loss of a micro-batch is the mean over its own tokens, and that of a step the mean over micro-batches, then replicas
(Megatron-LM core_v0.19.0, forward_step_calc_loss, finalize_model_grads).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from harness.oracle.experts import Routed, balance_loss, z_loss
from harness.oracle.fields import Model
from harness.oracle.layers import widened
from harness.oracle.model import Forward
from harness.oracle.rows import Stream


def cross_entropy(logits: Tensor, labels: Tensor, smoothing: float = 0.0) -> Tensor:
    """Return [t] losses of logits [t, v]: log sum_j exp l_j - l_label.

    With smoothing s a label has probability 1 - s, and each other token s / (v - 1) (arXiv 1512.00567, section 7;
    Megatron-LM core_v0.19.0, vocab_parallel_cross_entropy).
    """
    logits = widened(logits)
    negative = logits.logsumexp(-1, keepdim=True) - logits
    wanted = negative.gather(-1, labels[:, None])[:, 0]
    if not smoothing:
        return wanted
    others = (negative.sum(-1) - wanted) / (logits.shape[-1] - 1)
    return (1 - smoothing) * wanted + smoothing * others


@dataclass(frozen=True, kw_only=True)
class MicroLoss:
    """The losses of one micro-batch."""

    losses: Tensor  # [t]: of each slot's label, 0 where it is masked
    predictions: list[Tensor]  # [t] of each prediction layer, 0 where its label is masked
    predicted: list[Tensor]  # [t]: 1 where its label counts
    balance: list[Tensor]  # of each router, with their weights; scalars
    z: list[Tensor]
    balanced: list[Stream]  # the micro-batches over which `balance` is: this one, or those of all replicas


def micro_loss(
    seen: Forward,
    stream: Stream,
    model: Model,
    smoothing: float,
    together: Sequence[tuple[Stream, Forward]],
    before: Sequence[Sequence[Tensor]],
) -> MicroLoss:
    """Return the losses of a micro-batch; `together`, `before`: see `experts.balance_loss`, `before` by router.

    Without `together` there are no losses of routers, as in an evaluation.
    """
    losses = cross_entropy(seen.logits, stream.labels, smoothing)
    mask = stream.mask.to(losses.dtype)
    losses = losses * mask
    predictions, predicted, labels = [], [], stream.labels
    for logits in seen.predictions:
        # Shifted once more per depth, inside the segment: a prediction must not reach into the next document.
        labels, mask = stream.shifted(labels), stream.shifted(mask)
        predictions.append(cross_entropy(logits, labels) * mask)
        predicted.append(mask)
    balance, z = [], []
    for number, routed in enumerate(seen.routed if together else []):
        assert model.experts is not None
        # A zero in place of a loss that is off keeps the lists as long as the routers.
        zero = losses.new_zeros(())
        peers = [other.routed[number] for _, other in together]
        balance.append(
            zero if model.experts.balance == "none" else balance_loss(routed, peers, before[number], model.experts)
        )
        z.append(z_loss(routed, model.experts))
    everywhere = model.experts is not None and model.experts.balance == "global_aux_loss"
    return MicroLoss(
        losses=losses,
        predictions=predictions,
        predicted=predicted,
        balance=balance,
        z=z,
        balanced=[other for other, _ in together] if everywhere else [stream],
    )


@dataclass(frozen=True, kw_only=True)
class Divisors:
    """What the losses of a micro-batch are divided by."""

    labels: int  # that count, in all replicas
    counted: int  # tokens whose number the loss returns, by which upstream divides gradients: labels, or all tokens
    micro_batches: int  # of this replica, times the replicas
    step_mean: bool = False  # the data path's loss is the mean over the labels of the step, also without `per_token`


def share_of_step(part: MicroLoss, stream: Stream, model: Model, by: Divisors) -> Tensor:
    """Return the part of a micro-batch in the loss of the step, a scalar.

    A prediction layer's loss is the mean over the labels that remain, by prediction_weight over the number of layers;
    it counts as many tokens as the micro-batch has (process_mtp_loss). Losses of routers are means too, and count as
    many slots as they are over (TopKRouter.attach_and_log_load_balancing_loss, apply_z_loss). A loss over all replicas
    is the sum of their shares, so each share counts the slots of all; upstream's counts its own (issue 3672).
    """
    zero, mask = part.losses.new_zeros(()), stream.mask.sum()
    weight = model.prediction_weight / max(model.predictions, 1)
    further = [
        weight * losses.sum() / count.sum().clamp(min=1) for losses, count in zip(part.predictions, part.predicted)
    ]
    ahead, balance, z = (torch.stack(found).sum() if found else zero for found in (further, part.balance, part.z))
    if model.per_token:
        # Upstream scales a router's loss by the slots it saw before the step's division by tokens, so both factors
        # stand here.
        slots = sum(int(other.counted.sum()) for other in part.balanced)
        besides = (mask * ahead + slots * balance + stream.counted.sum() * z) / max(by.counted, 1)
    else:
        besides = (ahead + len(part.balanced) * balance + z) / by.micro_batches
    if model.per_token or by.step_mean:
        return part.losses.sum() / max(by.labels, 1) + besides
    return part.losses.sum() / mask.clamp(min=1) / by.micro_batches + besides


def taken_by_experts(routed: Sequence[Routed]) -> Tensor:
    """Return [e] float64: the slots that each expert took, of several routings."""
    return torch.stack([(one.taken & one.counted[:, None]).sum(0).double() for one in routed]).sum(0)
