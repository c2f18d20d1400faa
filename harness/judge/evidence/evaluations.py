"""The evaluations of a cell, with losses of the whole model assembled from the ranks' shares."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from harness.core.packing.arithmetic import MicroBatch
from harness.core.run.records import DocumentLoss, EvaluationSeen, RankRecord
from harness.core.run.tensor_records import Fingerprint
from harness.judge.evidence.assemble import whole_activations
from harness.judge.evidence.cell_evidence import CellEvidence


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """One evaluation that every rank of the last stage finished."""

    number: int  # from 0, over all parts of the cell
    after: int  # number of finished steps
    plan: list[list[MicroBatch]]  # [dp][micro-batch]
    seen: list[tuple[RankRecord, EvaluationSeen]]  # of the last stage, in rank order
    documents: dict[int, DocumentLoss]  # summed over the cp ranks
    loss_sum: float | None
    outputs: dict[int, dict[int, Fingerprint]]  # layer (0: embedding) -> document, of all stages; empty: not recorded

    @property
    def tokens(self) -> int:
        """Those that count in the loss, by the plan."""
        return sum(batch.loss_tokens for replica in self.plan for batch in replica)


def evaluations_of(evidence: CellEvidence) -> Iterator[Evaluation]:
    """The finished evaluations of this part of the cell, in order."""
    config, last = evidence.cell.config, evidence.last_stage
    ranks = [evidence.records[rank] for rank in sorted(evidence.records) if evidence.records[rank].place.pp == last]
    if len(ranks) < evidence.layout.world_size // evidence.layout.pp:
        return
    for place, (number, after) in enumerate(config.evaluations.items()):
        if any(len(record.evaluations) <= place for record in ranks):
            return
        seen = [(record, record.evaluations[place]) for record in ranks]
        yield Evaluation(
            number=number,
            after=after,
            plan=config.micro_batches(config.train.steps + number),
            seen=seen,
            documents=_documents(seen),
            loss_sum=next((item.loss_sum for _, item in seen if item.loss_sum is not None), None),
            outputs=_outputs(evidence, place),
        )


def _outputs(evidence: CellEvidence, place: int) -> dict[int, dict[int, Fingerprint]]:
    records = [evidence.records[rank] for rank in sorted(evidence.records)]
    if any(len(record.evaluations) <= place for record in records):
        return {}
    ranks = ((record.place, record.evaluations[place].activations) for record in records)
    return whole_activations(ranks, sp=evidence.layout.sp)


def _documents(seen: list[tuple[RankRecord, EvaluationSeen]]) -> dict[int, DocumentLoss]:
    sums: dict[int, DocumentLoss] = {}
    for _, item in seen:
        for document, part in item.documents.items():
            old = sums.get(document, DocumentLoss(loss_sum=0.0, tokens=0))
            sums[document] = DocumentLoss(loss_sum=old.loss_sum + part.loss_sum, tokens=old.tokens + part.tokens)
    return sums
