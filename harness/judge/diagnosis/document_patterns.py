"""The probable fault class, from which documents differ."""

from __future__ import annotations

from collections.abc import Collection

from harness.judge.diagnosis import fault_classes
from harness.judge.evidence.cell_evidence import CellEvidence


def documents_pattern(evidence: CellEvidence, documents: Collection[int], step: int) -> str:
    """TRUNCATION if all were truncated; LEAK if none is first in its stream, since attention is causal; else CP_LAYOUT
    if cp > 1."""
    homes = [evidence.homes[step][document] for document in documents if document in evidence.homes[step]]
    if homes and all(home.truncated for home in homes):
        return fault_classes.TRUNCATION
    if homes and evidence.packed and not any(home.first for home in homes):
        return fault_classes.LEAK
    return fault_classes.CP_LAYOUT if evidence.layout.cp > 1 else fault_classes.UNKNOWN
