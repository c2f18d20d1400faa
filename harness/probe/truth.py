"""Ground truth: the content of every slot that a data path must deliver, built from the packing plan."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

import torch
from torch import Tensor

from harness.core.cell.canary_legs import Leg
from harness.core.cell.config import CellConfig
from harness.core.packing.arithmetic import PAD, MicroBatch
from harness.core.packing.documents import Document
from harness.features.vision.config import AXES, positions
from harness.oracle.drawing import OTHER_PADDING, PADDING, document_pixels, document_tokens


@dataclass(frozen=True)
class MicroTruth:
    """One micro-batch as flat streams over its slots, before the split over cp. int64 [slots] unless noted."""

    plan: MicroBatch
    tokens: Tensor
    labels: Tensor
    loss_mask: Tensor  # float32
    position_ids: Tensor  # of a model with vision [slots, axes]
    owners: Tensor  # [slots, 2]: document index or PAD, position
    pad_id: int = PADDING  # token and label of padding slots
    pixels: Tensor | None = None  # float32 [patches, values], of all images in order; None without images
    grids: Tensor | None = None  # [images, 3]: their patches along time, height and width
    slots_of_ranks: dict[tuple[int, int], Tensor] = field(default_factory=dict, repr=False, compare=False)  # by `local`

    @property
    def padding_mask(self) -> Tensor:
        """bool [slots], True for padding."""
        return self.owners[:, 0] == PAD

    @property
    def row_numbers(self) -> Tensor:
        """[slots] int64: the row of each slot within the micro-batch."""
        lengths = torch.tensor([row.length for row in self.plan.rows])
        return torch.repeat_interleave(torch.arange(len(lengths)), lengths)

    def local(self, stream: Tensor, cp: int, cp_rank: int) -> Tensor:
        """Return the slots of one context-parallel rank: [rows, slots per row, ...] in that rank's order."""
        if (cp, cp_rank) not in self.slots_of_ranks:  # a row may have millions of slots
            self.slots_of_ranks[cp, cp_rank] = torch.tensor(self.plan.local_slots(cp, cp_rank))
        return stream[self.slots_of_ranks[cp, cp_rank]]


class StepTruth:
    """Truth of one step of a cell, or of a canary leg with its own documents, for one data-parallel replica.

    An adapter packs `documents` (all of the step, in order) and must arrive at `plans`, the micro-batches of its
    replica; `replicas` has those of all, indexed [dp][i]. `content` gives the tokens of a document, `micro_batches`
    what every slot must hold.
    """

    def __init__(self, config: CellConfig, step: int, dp: int, leg: Leg | None = None) -> None:
        self.config = config
        self.step = step
        self.leg = leg
        self.documents = config.documents_of(step) if leg is None else list(leg.documents)
        self.replicas = config.micro_batches(step) if leg is None else leg.micro_batches(config)
        self.plans = self.replicas[dp]
        self.pad_id = OTHER_PADDING if leg is not None and leg.other_padding else PADDING

    @cached_property
    def micro_batches(self) -> list[MicroTruth]:
        return [self._micro(plan) for plan in self.plans]

    def _content(self, document: Document) -> Tensor:
        """Return [length + 1] token ids; labels are the tokens shifted by one. Truncation keeps the head."""
        return self.content(document)[: document.length + 1]

    def content(self, document: Document) -> Tensor:
        """Return [original_length + 1] token ids, before truncation."""
        return document_tokens(self.config, self.step, document, changed=self._is_changed(document))

    def pixels(self, document: Document) -> list[Tensor]:
        """Return the patches of each of its images, [patches, values]."""
        return document_pixels(self.config, self.step, document, changed=self._is_changed(document))

    def _is_changed(self, document: Document) -> bool:
        return self.leg is not None and document.index in self.leg.changed

    def _micro(self, plan: MicroBatch) -> MicroTruth:
        # A leg pads with another token: a model that attends to padding then gives another loss.
        tokens = torch.full((plan.slots,), self.pad_id)
        labels = tokens.clone()
        mask = torch.zeros(plan.slots, dtype=torch.float32)
        for placed in plan.placed:
            ids = self._content(placed.document)
            real = slice(placed.start, placed.start + placed.document.length)
            tokens[real], labels[real] = ids[:-1], ids[1:]
            if self.config.model.vision and plan.style.last_token_slots:  # of paths that are given the truth itself
                # Such rows hold the last token too, whose label is the next slot's padding.
                tokens[real.stop] = ids[-1]
            mask[real] = torch.tensor(placed.document.loss_mask, dtype=mask.dtype)
        owners = _owners(plan)
        images = [image for placed in plan.placed for image in placed.document.images]
        pixels = [part for placed in plan.placed for part in self.pixels(placed.document)]
        return MicroTruth(
            plan=plan,
            tokens=tokens,
            labels=labels,
            loss_mask=mask,
            position_ids=owners[:, 1].clone() if self.config.model.vision is None else _axes(plan),
            owners=owners,
            pad_id=self.pad_id,
            pixels=torch.cat(pixels) if pixels else None,
            grids=torch.tensor([image.grid for image in images]) if images else None,
        )


def _owners(plan: MicroBatch) -> Tensor:
    """Return what MicroBatch.slot_owners does, [slots, 2] int64, also of rows of millions of slots."""
    owners = torch.full((plan.slots, 2), PAD)
    start = 0
    for row in plan.rows:
        for item in row.placed:
            segment = owners[start : start + item.padded_length]
            segment[: item.document.length, 0] = item.document.index
            segment[:, 1] = torch.arange(item.padded_length)
            start += item.padded_length
        owners[start : start + row.tail, 1] = torch.arange(row.tail)
        start += row.tail
    return owners


def _axes(plan: MicroBatch) -> Tensor:
    """Return [slots, axes] int64 positions of the tokens of each document; 0 in padding slots."""
    axis_positions = torch.zeros(plan.slots, len(AXES), dtype=torch.int64)
    for placed in plan.placed:
        length = placed.document.length
        axis_positions[placed.start : placed.start + length] = torch.tensor(positions(length, placed.document.images))
    return axis_positions


def first_difference(actual: Tensor, expected: Tensor, owners: Tensor, counted: Tensor) -> tuple[int, list[int] | None]:
    """Return the number of `counted` slots that differ, and the first of them as [document, position, expected, found].

    `actual` and `expected` are [rows, slots], or [rows, slots, axes], of which the first that differs is named;
    `counted` (bool) is [rows, slots], `owners` [rows, slots, 2].
    """
    wrong = actual != expected
    if wrong.dim() > counted.dim():
        # argmax of 0 and 1 is the first 1.
        axis = int(((wrong & counted[..., None]).flatten(0, 1).any(0)).int().argmax())
        actual, expected, wrong = actual[..., axis], expected[..., axis], wrong.any(-1)
    places = (wrong & counted).nonzero()
    if not len(places):
        return 0, None
    row, slot = (int(value) for value in places[0])
    document, position = (int(value) for value in owners[row, slot])
    return len(places), [document, position, int(expected[row, slot]), int(actual[row, slot])]
