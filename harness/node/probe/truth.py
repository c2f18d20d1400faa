"""Ground truth: the content of every slot that a data path must deliver, built from the packing plan."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from harness.core.cell.canary_legs import Leg
from harness.core.cell.config import CellConfig
from harness.core.packing.arithmetic import PAD, MicroBatch
from harness.core.packing.documents import Document
from harness.node.probe.weights import END, OTHER_PADDING, PADDING, content_tokens


@dataclass(frozen=True)
class MicroTruth:
    """One micro-batch as flat streams over its slots, before the split over cp. int64 [slots] unless noted."""

    plan: MicroBatch
    tokens: Tensor
    labels: Tensor
    loss_mask: Tensor  # float32
    position_ids: Tensor
    owners: Tensor  # [slots, 2]: document index or PAD, position
    pad_id: int = PADDING  # token and label of padding slots

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
        """The slots of one context-parallel rank: [rows, slots per row, ...] in that rank's order."""
        return stream[torch.tensor(self.plan.local_slots(cp, cp_rank))]


class StepTruth:
    """Truth of one step of a cell, or of a canary leg with its own documents, for one data-parallel replica."""

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
        """[length + 1] token ids; labels are the tokens shifted by one. Truncation keeps the head."""
        return self.content(document)[: document.length + 1]

    def content(self, document: Document) -> Tensor:
        """[original_length + 1] token ids, before truncation. A copy has the content of its original."""
        index = document.index if document.copy_of is None else document.copy_of
        changed = self.leg is not None and document.index in self.leg.changed
        ids = content_tokens(self.config, self.step, index, document.original_length + 1, changed=changed)
        if document.delimited:
            ids[[message.end - 1 for message in document.messages]] = END
        return ids

    def _micro(self, plan: MicroBatch) -> MicroTruth:
        tokens = torch.full((plan.slots,), self.pad_id)
        labels = tokens.clone()
        mask = torch.zeros(plan.slots, dtype=torch.float32)
        for item in plan.placed:
            ids = self._content(item.document)
            real = slice(item.start, item.start + item.document.length)
            tokens[real], labels[real] = ids[:-1], ids[1:]
            mask[real] = torch.tensor(item.document.loss_mask, dtype=mask.dtype)
        owners = torch.tensor(plan.slot_owners(), dtype=torch.int64)
        return MicroTruth(
            plan=plan,
            tokens=tokens,
            labels=labels,
            loss_mask=mask,
            position_ids=owners[:, 1].clone(),
            owners=owners,
            pad_id=self.pad_id,
        )


def first_difference(found: Tensor, expected: Tensor, owners: Tensor, counted: Tensor) -> tuple[int, list[int] | None]:
    """The number of `counted` slots that differ, and the first of them as [document, position, expected, found].

    `found`, `expected` and `counted` (bool) are [rows, slots]; `owners` is [rows, slots, 2].
    """
    places = ((found != expected) & counted).nonzero()
    if not len(places):
        return 0, None
    row, slot = (int(value) for value in places[0])
    document, position = (int(value) for value in owners[row, slot])
    return len(places), [document, position, int(expected[row, slot]), int(found[row, slot])]
