"""The loss of packed rows."""

from __future__ import annotations

from torch import Tensor


def loss_func(loss_mask: Tensor, losses: Tensor) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
    """Sum the losses of the labels that count, [rows, slots], and count these; Megatron divides by the count."""
    mask = loss_mask.float()
    total, tokens = (losses.float() * mask).sum(), mask.sum()
    return total, tokens.int(), {"lm loss": total.detach()}
