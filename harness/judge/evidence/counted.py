"""The number of tokens by which a step is divided, as the loss returned it, and what trainers count, from the plan.

| trainer | sum of lengths | sum of squared lengths |
|---|---|---|
| megatron | as in cu_seqlens, where the padding of a row belongs to its last document | the same |
| megatron, before it counted packed tokens | every row as one document | the same |
| bridge, cp 1 | slots, so with all padding | as in cu_seqlens_q, so with the segment that fills a row |
| bridge, cp above 1 | every row as one document: gpt_step.forward_step leaves the offsets out | the same |
| bridge, not packed | every row as one document of seq_length tokens, though rows are shorter | the same |
"""

from __future__ import annotations

from typing import NamedTuple

from harness.core.packing.arithmetic import summed_lengths
from harness.judge.evidence.cell_evidence import CellEvidence


class Counted(NamedTuple):
    """Counts of one step, over all replicas."""

    tokens: int
    squares: int


def counted_labels(evidence: CellEvidence, step: int) -> int:
    """Return the labels of a step that count in the loss, over all replicas."""
    return sum(truth.batch.loss_tokens for replica in evidence.plan[step] for truth in replica)


def counted_tokens(evidence: CellEvidence, step: int) -> int:
    """Return the tokens by which a loss per token is divided, over all replicas: labels that count, or all tokens."""
    if evidence.cell.config.path.counted != "tokens":
        return counted_labels(evidence, step)
    batches = [truth.batch for replica in evidence.plan[step] for truth in replica]
    return sum(placed.document.length + 1 for batch in batches for placed in batch.placed)


def returned_tokens(evidence: CellEvidence, step: int) -> list[float | None]:
    """Return, per tp rank, what a step's losses returned over replicas and context ranks; None if none returned any."""
    totals: list[float | None] = []
    for tp in range(evidence.layout.tp):
        returned = [
            recorded.returned_tokens for _, recorded in evidence.step_records(step, pp=evidence.last_stage, tp=tp)
        ]
        counts = [count for count in returned if count is not None]
        totals.append(sum(counts) if counts else None)
    return totals


def counted(evidence: CellEvidence, step: int, packed: bool) -> Counted:
    """Return what a trainer counts of a step. `packed`: whether its release counts tokens of packed documents."""
    config = evidence.cell.config
    replicas = [[truth.batch for truth in replica] for replica in evidence.plan[step]]
    batches = [batch for replica in replicas for batch in replica]
    bridge, size = config.trainer == "bridge", config.train.seq_length
    if not packed or (bridge and (config.layout.cp > 1 or not config.style.packed)):
        rows = sum(len(batch.rows) for batch in batches)
        return Counted(rows * size, rows * size**2)
    tokens, squares = map(sum, zip(*map(summed_lengths, replicas)))
    return Counted(sum(batch.slots for batch in batches) if bridge else tokens, squares)
