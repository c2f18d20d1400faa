"""A training loop on Megatron's schedule that knows nothing of the harness: what a third party has."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from megatron.core.pipeline_parallel import get_forward_backward_func
from torch import Tensor


def forward_step(batches: Iterator[Any], model: Any) -> tuple[Tensor, Callable[..., Any]]:
    """The losses of the next micro-batch, and its loss function."""
    batch = next(batches)
    losses = model(
        batch.tokens,
        batch.position_ids,
        None,
        labels=batch.labels,
        loss_mask=batch.loss_mask,
        packed_seq_params=batch.params,
    )
    return losses, partial(loss_of, batch.loss_mask)


def loss_of(mask: Tensor, losses: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Sum of losses and number of tokens, once for backward and once as a report."""
    total, tokens = (losses.float() * mask).sum(), mask.sum().int()
    return total, tokens, torch.stack([total.detach().double(), tokens.double()])


def train_step(step_func: Any, batches: Iterator[Any], model: Any, optimizer: Any, **sizes: int) -> tuple[float, float]:
    """One step; returns its mean loss and the norm of its gradients."""
    model.zero_grad_buffer()
    optimizer.zero_grad()
    run = get_forward_backward_func()
    reports = run(forward_step_func=step_func, data_iterator=batches, model=model, forward_only=False, **sizes)
    norm = float(torch.stack([parameter.main_grad.norm() for parameter in model.parameters()]).norm())
    optimizer.step()
    total, tokens = torch.stack(reports).sum(0).tolist()
    return total / tokens, norm
