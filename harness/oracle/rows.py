"""The input of the model: the slots of a micro-batch, as the packing plan lays its documents out.

A slot is one token position of the merged stream; t is their number. Slots that hold no token of a document are
padding, which comes after documents: their attention does not see it, but a router sees every slot.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import NamedTuple

import torch
from torch import Tensor

from harness.core.cell.config import CellConfig
from harness.core.packing.arithmetic import PAD, MicroBatch
from harness.features.vision.config import positions
from harness.oracle.drawing import END, PADDING, document_pixels, document_tokens


class Places(NamedTuple):
    """Where slots, or patches of images, are: what attention knows of them."""

    positions: Tensor  # [t], or [t, axes]
    segments: tuple[int, ...]  # slots that attend to each other


class Images(NamedTuple):
    """The images of a micro-batch, in the order of their tokens."""

    pixels: Tensor  # float32 [patches, values]: each patch's channels, in them frames, rows and columns
    grids: tuple[tuple[int, int, int], ...]  # patches of each image along time, height and width


@dataclass(frozen=True, kw_only=True)
class Stream:
    """One micro-batch. [t] int64 unless noted."""

    tokens: Tensor
    labels: Tensor  # the token after each one
    mask: Tensor  # float: 1 where the label counts in the loss
    positions: Tensor  # from 0 in each segment
    documents: Tensor  # index of the document, PAD for padding
    segments: tuple[int, ...]  # slots that attend to each other: documents with their padding, tails of rows; or rows
    rows: tuple[int, ...]  # slots of each row, for the auxiliary loss per row
    shares: tuple[Tensor, ...]  # the slots that one rank routes, since the capacity of experts is per rank
    counted: Tensor  # bool: the slots that routers count
    axes: Tensor | None = None  # [t, 3]: of a model with images, positions along time, height and width
    images: Images | None = None

    @property
    def slots(self) -> int:
        return len(self.tokens)

    @property
    def places(self) -> Places:
        return Places(self.positions if self.axes is None else self.axes, self.segments)

    @property
    def indices(self) -> list[int]:
        """The documents, in order of their indices."""
        return sorted({int(document) for document in self.documents} - {PAD})

    def shifted(self, values: Tensor) -> Tensor:
        """`values` [t] one slot to the left in each segment, where 0 enters (megatron-core roll_tensor, core_v0.19)."""
        parts = [torch.cat([part[1:], torch.zeros_like(part[:1])]) for part in torch.split(values, list(self.segments))]
        return torch.cat(parts)


def stream_of(config: CellConfig, step: int, plan: MicroBatch) -> Stream:
    """Return the slots of one micro-batch of a step."""
    owners = torch.tensor(plan.slot_owners())
    rows = tuple(row.length for row in plan.rows)
    segments = tuple(padded for _, padded in plan.segments) if plan.style.packed else rows
    tokens = torch.full((plan.slots,), END if config.style.pads_with_end else PADDING)
    labels, mask = torch.full_like(tokens, PADDING), torch.zeros(plan.slots, dtype=torch.float64)
    for item in plan.placed:
        length, start = item.document.length, item.start
        ids = document_tokens(config, step, item.document)[: length + 1]
        given = length + plan.style.last_token_slots  # some data paths feed the last token too, which has no label
        tokens[start : start + given] = ids[:given]
        labels[start : start + length] = ids[1:]
        mask[start : start + length] = torch.tensor(item.document.loss_mask)
    return Stream(
        tokens=tokens,
        labels=labels,
        mask=mask,
        # Padding goes on counting, as upstream's positions do; no token of a document sees it.
        positions=torch.cat([torch.arange(size) for size in segments]),
        documents=owners[:, 0],
        segments=segments,
        rows=rows,
        shares=shares_of(config, plan),
        counted=owners[:, 0] != PAD if config.model.padding_mask else torch.ones(plan.slots, dtype=torch.bool),
        axes=_axes(plan, segments) if config.model.vision else None,
        images=_images(config, step, plan),
    )


def _axes(plan: MicroBatch, segments: Sequence[int]) -> Tensor:
    """Return [t, 3] positions of a document, which begins a segment, and of the padding after it (features/vision)."""
    images = {item.start: item.document.images for item in plan.placed}
    starts = accumulate(segments, initial=0)
    return torch.cat([torch.tensor(positions(size, images.get(start, ()))) for size, start in zip(segments, starts)])


def _images(config: CellConfig, step: int, plan: MicroBatch) -> Images | None:
    documents = [item.document for item in plan.placed]
    pixels = [part for document in documents for part in document_pixels(config, step, document)]
    grids = tuple(image.grid for document in documents for image in document.images)
    return Images(torch.cat(pixels), grids) if grids else None


def shares_of(config: CellConfig, plan: MicroBatch) -> tuple[Tensor, ...]:
    """Return slots of each context-parallel rank, and with sequence parallelism of each tensor-parallel rank of it, in
    order.

    A rank that holds several rows has them interleaved, slot by slot: Megatron's hidden states are [s, b, h].
    """
    layout = config.layout
    parts = layout.tp if layout.sp else 1
    found: list[Tensor] = []
    for rank in range(layout.cp):
        local = torch.tensor(plan.local_slots(layout.cp, rank))  # [rows, slots of a row]
        found += local.T.chunk(parts)
    return tuple(part.flatten() for part in found)
