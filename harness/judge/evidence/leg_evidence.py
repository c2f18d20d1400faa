"""One canary leg: the records of all ranks, combined, and the plan of the leg."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from harness.core.cell.canary_legs import Leg
from harness.core.cell.config import CellConfig
from harness.core.cell.layout import Coordinates
from harness.core.packing.arithmetic import MicroBatch
from harness.core.run.records import DocumentLoss, LegSeen, RankRecord
from harness.core.run.tensor_records import Fingerprint
from harness.judge.evidence.assemble import ParameterGradient, whole_activations, whole_gradients
from harness.judge.locations import where_of


@dataclass(frozen=True, kw_only=True)
class LegPosition:
    """Where a document is packed in a leg."""

    dp: int
    micro_batch: int
    number: int  # among the documents of its micro-batch, from 0

    def __str__(self) -> str:
        return f"number {self.number} in micro-batch {self.micro_batch} of replica {self.dp}"

    def where(self, leg: str, last_stage: int) -> dict[str, int | str]:
        """Return the `where` of a finding about the document's loss."""
        return {"stage": last_stage, "dp": self.dp, "leg": leg, "step": 0, "micro_batch": self.micro_batch}


@dataclass(frozen=True, kw_only=True)
class LegEvidence:
    """A leg that every rank finished."""

    leg: Leg
    config: CellConfig
    seen: Mapping[int, LegSeen]  # rank -> what it recorded

    @cached_property
    def plan(self) -> list[list[MicroBatch]]:
        """Return the packing of the leg, indexed [dp][micro-batch]."""
        return self.leg.micro_batches(self.config)

    @cached_property
    def positions(self) -> dict[int, LegPosition]:
        """Return document -> its position, in the order of the packing."""
        return {
            placed.document.index: LegPosition(dp=dp, micro_batch=number, number=index)
            for dp, replica in enumerate(self.plan)
            for number, batch in enumerate(replica)
            for index, placed in enumerate(batch.placed)
        }

    @cached_property
    def losses(self) -> dict[int, DocumentLoss]:
        """Return document -> loss summed over the cp ranks, in rank order."""
        sums: dict[int, DocumentLoss] = {}
        for _, recorded in self._with_losses():
            for document, part in recorded.documents.items():
                old = sums.get(document, DocumentLoss(loss_sum=0.0, tokens=0))
                sums[document] = DocumentLoss(loss_sum=old.loss_sum + part.loss_sum, tokens=old.tokens + part.tokens)
        return sums

    @property
    def token_count(self) -> int:
        """Return the number of labels that count in the loss, over all replicas."""
        return sum(recorded.token_count for _, recorded in self._with_losses())

    @cached_property
    def gradients(self) -> dict[str, ParameterGradient]:
        """Return parameter -> gradient of the whole tensor; only of legs with a backward."""
        return whole_gradients((at, recorded.parameters) for at, recorded in self._in_order())

    @cached_property
    def activations(self) -> dict[int, dict[int, Fingerprint]]:
        """Return layer (0: embedding) -> document -> fingerprint of its output."""
        return whole_activations(
            ((at, recorded.activations) for at, recorded in self._in_order()), sp=self.config.layout.sp
        )

    def _in_order(self) -> list[tuple[Coordinates, LegSeen]]:
        return [(self.config.layout.coordinates(rank), self.seen[rank]) for rank in sorted(self.seen)]

    def _with_losses(self) -> list[tuple[Coordinates, LegSeen]]:
        return [
            (at, recorded) for at, recorded in self._in_order() if at.pp == self.config.layout.pp - 1 and at.tp == 0
        ]

    def at_rank(self, rank: int, **more: object) -> dict[str, object]:
        """Return the `where` of a finding about what one rank recorded."""
        place = self.config.layout.coordinates(rank)
        return where_of(place, rank=rank, leg=self.leg.name, step=0, **more)


def legs_seen(config: CellConfig, legs: Sequence[Leg], records: Mapping[int, RankRecord]) -> dict[str, LegEvidence]:
    """Return leg name -> evidence, of the legs that all ranks of the layout finished."""
    evidence: dict[str, LegEvidence] = {}
    for leg in legs:
        by_rank = {
            rank: recorded for rank, record in records.items() for recorded in record.legs if recorded.leg == leg.name
        }
        if len(by_rank) == config.layout.world_size:
            evidence[leg.name] = LegEvidence(leg=leg, config=config, seen=by_rank)
    return evidence
