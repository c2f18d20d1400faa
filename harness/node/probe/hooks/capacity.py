"""The harness's own computation of what a router does with a token: scores, and which tokens experts take.

As megatron.core.transformer.moe.moe_utils defines them: compute_routing_scores_for_aux_loss,
apply_router_token_dropping.
"""

from __future__ import annotations

import torch
from torch import Tensor

from harness.core.cell.model import MoeConfig

_ROUNDING = 1e-5


def routing_scores(moe: MoeConfig, logits: Tensor) -> Tensor:
    """[tokens, experts] float32: scores that add up to 1 for each token."""
    if moe.score_function == "softmax":
        return torch.softmax(logits.float(), -1)
    scores = torch.sigmoid(logits.float())
    return scores / scores.sum(-1, keepdim=True)


def misplaced(moe: MoeConfig, logits: Tensor, taken: Tensor) -> int:
    """The number of tokens that experts drop although they rank before one that is taken.

    By their weight, or by their place in the row. `taken` [tokens, experts] bool. Weights that differ by rounding are
    equal.
    """
    weights = _weights(moe, logits)
    chosen = weights > 0
    places = torch.arange(len(logits), 0, -1, dtype=weights.dtype, device=weights.device)[:, None]
    order = torch.where(chosen, weights if moe.drop_policy == "probs" else places, 0.0)
    last = order.masked_fill(~taken, torch.inf).amin(0, keepdim=True)
    return int((chosen & ~taken & (order > last * (1 + _ROUNDING))).sum())


def _weights(moe: MoeConfig, logits: Tensor) -> Tensor:
    """[tokens, experts] float32: the weight of each chosen expert's output, 0 for the others."""
    values = logits.float() if moe.score_function == "softmax" else torch.sigmoid(logits.float())
    top = values.topk(moe.topk, dim=1)
    if moe.pre_softmax:
        weights = torch.softmax(values, -1).gather(1, top.indices)
    elif moe.score_function == "softmax":
        weights = torch.softmax(top.values, -1)
    else:
        weights = top.values / top.values.sum(-1, keepdim=True) if moe.topk > 1 else top.values
    return torch.zeros_like(values).scatter(1, top.indices, weights)
