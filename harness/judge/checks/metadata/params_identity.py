"""Padded offsets that equal the plain ones are the same tensors; copies cost Transformer Engine its fast path.

A warning: the numbers are right, the kernel is slower. Transformer Engine compares padded with plain offsets by object
for q and for kv (DotProductAttention.forward); it never compares those of q with those of kv.
"""

from __future__ import annotations

from harness.core.outcomes import Severity
from harness.judge.checks.finding import CheckFinding
from harness.judge.diagnosis import fault_classes
from harness.judge.evidence.cell_evidence import CellEvidence
from harness.judge.evidence.packed_params import copied_padding, problems_of
from harness.judge.locations import extent, fold


def check(evidence: CellEvidence) -> list[CheckFinding]:
    places = [
        place
        for item in evidence.params_seen
        if copied_padding(item.params) and not problems_of(item)
        for place in item.places
    ]
    if not places:
        return []
    first, where = fold(places)
    return [
        CheckFinding(
            severity=Severity.WARNING,
            fault_class=fault_classes.NOT_THE_SAME,
            message="cu_seqlens_padded equals cu_seqlens but is another tensor, and pad_between_seqs is not set: "
            f"Transformer Engine takes a slower kernel, at {first}{extent(where)}",
            where={**where, "field": "cu_seqlens_q_padded"},
            measured="equal, another tensor",
            bound="the same tensor, or pad_between_seqs set",
        )
    ]
