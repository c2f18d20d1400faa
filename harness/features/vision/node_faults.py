"""Injections into vision models of Megatron-Bridge, 0.6."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from megatron.core import parallel_state
from torch import Tensor

from harness.faults.node_fault import FAULTS, Fault, injects
from harness.features.vision.node_model import language_of
from harness.probe.model.gpt import unwrap
from harness.upstreams.node_base import Batch, RankContext


class PositionsEdited(Fault):
    """Change the positions that the language model of a model with vision gets, [axes, rows, local slots]."""

    def __init__(self, edit: Callable[[Tensor, RankContext], Tensor]) -> None:
        self.edit = edit

    def on_batch(self, batch: Batch, context: RankContext, chunk: int, micro_batch: int) -> Batch:
        assert batch.position_ids is not None
        # In both places: the metadata leg compares the batch, and the model is given positions that it computes itself.
        return replace(batch, position_ids=self.edit(batch.position_ids, context))

    def on_model(self, chunks: list[Any], context: RankContext) -> None:
        def changed(module: Any, args: Any, kwargs: Any) -> tuple[Any, Any]:
            return args, {**kwargs, "position_ids": self.edit(kwargs["position_ids"], context)}

        for chunk in chunks:
            language_of(unwrap(chunk)).register_forward_pre_hook(changed, with_kwargs=True)


def swapped(positions: Tensor, context: RankContext) -> Tensor:
    """Swap height and width."""
    return positions[[0, 2, 1]]


def running_on(positions: Tensor, context: RankContext) -> Tensor:
    """Count the slots of the packed row along every axis."""
    return torch.arange(positions.shape[-1], device=positions.device).expand_as(positions)


def of_next_rank(positions: Tensor, context: RankContext) -> Tensor:
    """Return what the next context-parallel rank has."""
    size = context.config.layout.cp
    parts = [torch.empty_like(positions) for _ in range(size)]
    dist.all_gather(parts, positions.contiguous(), group=parallel_state.get_context_parallel_group())
    return parts[(context.place.cp + 1) % size]


@injects("sections-of-time-alone")
class SectionsOfTimeAlone(Fault):
    """Rotate all sections of a head by the position in time."""

    def on_model(self, chunks: list[Any], context: RankContext) -> None:
        language = language_of(unwrap(chunks[0]))
        language.mrope_section = [sum(language.mrope_section), 0, 0]


@injects("features-of-the-next-token")
class FeaturesOfTheNextToken(Fault):
    """Shift the tower's features of images by one token."""

    def on_model(self, chunks: list[Any], context: RankContext) -> None:
        unwrap(chunks[0]).vision_model.register_forward_hook(
            lambda module, args, output: (output[0].roll(1, 0), output[1])
        )


FAULTS["height-and-width-swapped"] = partial(PositionsEdited, swapped)
FAULTS["positions-run-on-over-documents"] = partial(PositionsEdited, running_on)
FAULTS["positions-of-the-next-cp-rank"] = partial(PositionsEdited, of_next_rank)
