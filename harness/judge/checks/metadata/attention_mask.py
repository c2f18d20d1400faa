"""Attention of every layer gets a causal mask type and no bias of the scores.

The harness's own attention is always causal, so in a cell without a GPU only this check sees another mask type. The
tensor `attention_mask` is not compared: with a causal type, kernels do not read it.
"""

from __future__ import annotations

from collections.abc import Iterator

from harness.core.layer_pattern import RECURRENT
from harness.core.run.records import RankRecord
from harness.judge.checks.finding import CheckFinding
from harness.judge.diagnosis import fault_classes
from harness.judge.evidence.cell_evidence import CellEvidence
from harness.judge.locations import RankLocation, extent, fold

# Of megatron-core's AttnMaskType. With cu_seqlens, and with as many queries as keys, they mean the same.
CAUSAL = ("causal", "padding_causal", "causal_bottom_right")


def check(evidence: CellEvidence) -> list[CheckFinding]:
    model = evidence.cell.config.model
    recurrent = frozenset(model.numbers_of(RECURRENT)) if model.hybrid else frozenset()
    wrong = {place: given for record in evidence.records.values() for place, given in _wrong(record, recurrent)}
    if not wrong:
        return []
    first, where = fold(list(wrong))
    return [
        CheckFinding(
            fault_class=fault_classes.MASK,
            message=f"attention gets {wrong[first]} at {first}{extent(where)}",
            where=where,
            measured=wrong[first],
            bound="a causal mask",
        )
    ]


def _wrong(record: RankRecord, recurrent: frozenset[int]) -> Iterator[tuple[RankLocation, str]]:
    for seen in (*record.layers, *record.recomputed):
        allowed: tuple[str | None, ...] = (None,) if seen.layer in recurrent else CAUSAL
        if seen.mask in allowed and not seen.biased:
            continue
        place = RankLocation(record.rank, record.place, "training", seen.step, seen.micro_batch, seen.chunk, seen.layer)
        yield place, f"mask type {seen.mask}{', with a bias of the scores' if seen.biased else ''}"
