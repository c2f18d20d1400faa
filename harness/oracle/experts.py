"""Experts: routers, what an expert takes, and the losses that keep the load of experts even.

Shapes: t slots, e experts, k of them chosen per slot. A router sees every slot, padding too.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from harness.oracle.choices import Choice
from harness.oracle.fields import Experts, Model
from harness.oracle.layers import feed_forward, widened
from harness.oracle.rows import Stream


@dataclass(frozen=True, kw_only=True)
class Routed:
    """What the router of one layer did with a micro-batch."""

    layer: int  # from 1; prediction layers come after the others
    logits: Tensor  # [t, e]
    weights: Tensor  # [t, e]: of each expert's output, 0 where it does not take the slot
    chosen: Tensor  # [t, e] bool: the k experts of each slot
    taken: Tensor  # [t, e] bool: those of them within their capacity; with `filled` also slots that did not choose it
    scores: Tensor  # [t, e]: of the auxiliary loss
    preferred: Tensor  # [t, e] bool: the k highest scores, whatever biases and groups say
    ranked: Tensor  # [t, e]: by which the router chooses
    order: Tensor | None  # [t, e]: with a capacity, by which an expert takes slots; 0 where it is not chosen
    counted: Tensor  # [t] bool: slots in losses and counts
    rows: tuple[int, ...]


def mixture(
    x: Tensor,
    weights: Mapping[str, Tensor],
    at: str,
    number: int,
    model: Model,
    stream: Stream,
    bias: Tensor,
    choice: Choice | None,
) -> tuple[Tensor, Routed]:
    """x [t, hidden] through the experts of layer `number` that its router chooses, and the shared one.

    The output is the sum of the chosen experts' outputs by their weights (arXiv 1701.06538; Megatron-LM core_v0.19.0,
    MoELayer). `bias` [e], `choice`: see `route`.
    """
    assert model.experts is not None
    routed = route(x @ weights[f"{at}.router.weight"].T, bias, number, model.experts, stream, choice)
    out = torch.zeros_like(x)
    for expert in range(model.experts.count):
        slots = routed.weights[:, expert].nonzero().flatten()
        given = feed_forward(x[slots], weights, f"{at}.experts.{expert}", model)
        out = out.index_add(0, slots, (routed.weights[slots, expert, None] * given).to(out.dtype))
    if model.experts.shared:
        shared = feed_forward(x, weights, f"{at}.shared_experts", model)
        if model.experts.shared_gate:  # Qwen2-MoE; Megatron-LM core_v0.19.0, SharedExpertMLP
            shared = shared * (x @ weights[f"{at}.shared_experts.gate_weight"].T).sigmoid()
        out = out + shared
    return out, routed


def route(
    logits: Tensor, bias: Tensor, number: int, experts: Experts, stream: Stream, choice: Choice | None = None
) -> Routed:
    """Choose k experts per slot and weight them (Megatron-LM core_v0.19.0, topk_routing_with_score_function).

    With softmax the weights are those of the chosen logits alone, or `before` the choice of all logits. With sigmoid
    (DeepSeek-V3, arXiv 2412.19437, section 2.1.2) they are the scores of the chosen, divided by their sum if k > 1; the
    choice is by score + bias, which does not enter the weights. Weights are rounded to the dtype of the logits.
    `choice`: made by the ranks; None: by the scores.
    """
    sigmoid, dtype = experts.score == "sigmoid", logits.dtype
    logits = widened(logits)
    scores = logits.sigmoid() if sigmoid else logits.softmax(-1) if experts.before else logits
    ranked = scores + bias if sigmoid else scores
    which = _choice(ranked, experts) if choice is None else choice.chosen
    picked = scores.gather(-1, which)
    if sigmoid and experts.chosen > 1:
        # 1e-20 as in upstream: with sigmoid all scores of a slot may be 0 in bf16.
        picked = picked / (picked.sum(-1, keepdim=True) + 1e-20)
    elif not sigmoid and not experts.before:
        picked = picked.softmax(-1)
    # Rounded to the dtype of the logits and widened again: upstream multiplies outputs by the rounded weights.
    weights = torch.zeros_like(logits).scatter(-1, which, (picked * experts.factor).to(dtype).to(logits.dtype))
    chosen = torch.zeros_like(logits, dtype=torch.bool).scatter(-1, which, True)
    order, taken = None, chosen
    if experts.capacity is not None:
        order = weights.detach() if experts.drop == "probs" else _places(chosen, stream.shares).to(weights.dtype)
        given = choice.taken if choice is not None else None
        taken = _within_capacity(order, chosen, experts, stream.shares) if given is None else given
    # The auxiliary loss uses scores of all experts without the bias, whatever made the choice
    # (compute_routing_scores_for_aux_loss).
    of_loss = logits.softmax(-1) if not sigmoid else logits.sigmoid()
    of_loss = of_loss / (of_loss.sum(-1, keepdim=True) + 1e-20) if sigmoid else of_loss
    if choice is None:
        by_score = of_loss.topk(experts.chosen, -1).indices
    else:
        by_score = choice.chosen if choice.preferred is None else choice.preferred
    preferred = torch.zeros_like(chosen).scatter(-1, by_score, True)
    return Routed(
        layer=number,
        logits=logits,
        weights=weights * taken,
        chosen=chosen,
        taken=taken,
        scores=of_loss,
        preferred=preferred,
        ranked=ranked.detach(),
        order=order,
        counted=stream.counted,
        rows=stream.rows,
    )


def _choice(scores: Tensor, experts: Experts) -> Tensor:
    """Return [t, k]: the experts with the highest scores; with groups among those of the best groups.

    A group's rank is the sum of its k / chosen_groups highest scores (DeepSeek-V3, section 2.1.2; Megatron-LM
    core_v0.19.0, group_limited_topk).
    """
    if experts.groups and experts.chosen_groups:
        by_group = scores.view(len(scores), experts.groups, -1)
        ranks = by_group.topk(experts.chosen // experts.chosen_groups, -1).values.sum(-1)
        best = ranks.topk(experts.chosen_groups, -1).indices
        among = torch.zeros_like(ranks, dtype=torch.bool).scatter(-1, best, True)
        scores = by_group.masked_fill(~among[..., None], -torch.inf).flatten(-2)
    return scores.topk(experts.chosen, -1).indices


def _places(chosen: Tensor, shares: Sequence[Tensor]) -> Tensor:
    """Return [t, e] int64: of the slots that one rank routes the first has the highest; 0 where the expert is not
    chosen.
    """
    places = torch.zeros_like(chosen, dtype=torch.int64)
    for share in shares:
        places[share] = torch.arange(len(share), 0, -1)[:, None] * chosen[share]
    return places


def _within_capacity(order: Tensor, chosen: Tensor, experts: Experts, shares: Sequence[Tensor]) -> Tensor:
    """Return [t, e] bool: the slots that each expert takes, of those that one rank routes.

    The capacity is ceil(factor * slots * k / e) (arXiv 2006.16668, 2101.03961; Megatron-LM core_v0.19.0,
    apply_router_token_dropping): the slots that are highest in the `order`, those with the highest weights, or the
    first ones. A filled expert takes other slots too, with weight 0.
    """
    assert experts.capacity is not None
    taken = torch.zeros_like(chosen)
    for share in shares:
        slots = len(share)
        capacity = math.ceil(slots * experts.chosen / experts.count * experts.capacity)
        # Capacity counts per rank, since each rank drops tokens before it dispatches them.
        first = order[share].topk(min(capacity, slots), 0).indices
        taken[share] = torch.zeros_like(chosen[share]).scatter(0, first, True)
    return taken if experts.filled else taken & chosen


def balance_loss(routed: Routed, together: Sequence[Routed], before: Sequence[Tensor], experts: Experts) -> Tensor:
    """Return the auxiliary loss of one layer for one micro-batch, with its weight.

    weight * e / (k T^2) * sum_i n_i p_i, for T slots of which n_i prefer expert i, and p_i the sum of its scores
    (Switch Transformer, arXiv 2101.03961, equation 4; Megatron-LM core_v0.19.0, switch_load_balancing_loss_func):
    `aux_loss` over the micro-batch; `seq_aux_loss` over each row, then the mean of the rows; `global_aux_loss` with T
    and n over the micro-batches of all replicas that run `together`, n being the mean over these and those `before` in
    the step (arXiv 2501.11873).
    """
    scores, counts = routed.scores * routed.counted[:, None], preferences(routed)
    slots, rows = routed.counted.sum().to(scores.dtype), [len(scores)]
    if experts.balance == "seq_aux_loss":
        rows = list(routed.rows)
        slots = slots / len(rows)
    by_row = torch.stack([part.sum(0) for part in torch.split(counts, rows)])  # [rows, e]: n of each row
    if experts.balance == "global_aux_loss":
        now = torch.stack([preferences(one).sum(0) for one in together]).sum(0)
        by_row = torch.stack([*before, now]).mean(0)[None]
        slots = torch.stack([one.counted.sum() for one in together]).sum().to(scores.dtype)
    products = by_row * torch.stack([part.sum(0) for part in torch.split(scores, rows)])
    factor = experts.balance_weight * experts.count / experts.chosen / len(rows)
    return factor * products.sum() / slots.clamp(min=1) ** 2


def preferences(routed: Routed) -> Tensor:
    """Return [t, e] of the scores' dtype: 1 where a counted slot prefers an expert."""
    return (routed.preferred & routed.counted[:, None]).to(routed.scores.dtype)


def z_loss(routed: Routed, experts: Experts) -> Tensor:
    """weight * mean over slots of log^2 sum_i exp logit_i (ST-MoE, arXiv 2202.08906, equation 5)."""
    squares = routed.logits.logsumexp(-1).square() * routed.counted
    return experts.z_weight * squares.sum() / routed.counted.sum().clamp(min=1)


def moved_bias(bias: Tensor, taken: Tensor, rate: float) -> Tensor:
    """Return the bias of each expert after a step in which it took `taken` [e] slots: towards the mean load, by the
    rate.

    arXiv 2408.15664, algorithm 1; Megatron-LM core_v0.19.0, get_updated_expert_bias.
    """
    return bias + rate * (taken.sum() / len(taken) - taken).sign()
