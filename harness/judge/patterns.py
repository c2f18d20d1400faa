"""The probable class of fault from which documents differ."""

from __future__ import annotations

from collections.abc import Collection

from harness.judge import fault_classes
from harness.judge.evidence import CellEvidence
from harness.words.layout import Layout


def documents_pattern(evidence: CellEvidence, documents: Collection[int], step: int) -> str:
    """Truncated ones only: truncation. None that is first in its stream: leak, since attention is causal. Else the
    context-parallel layout where there is one."""
    homes = [evidence.homes[step][document] for document in documents if document in evidence.homes[step]]
    if homes and all(home.truncated for home in homes):
        return fault_classes.TRUNCATION
    if homes and evidence.packed and not any(home.first for home in homes):
        return fault_classes.LEAK
    return fault_classes.CP_LAYOUT if evidence.layout.cp > 1 else fault_classes.UNKNOWN


def stage_text(layout: Layout, layers: int, layer: int) -> tuple[int, str, bool]:
    """(stage, words, whether the layer is the first after a pipeline hop) of a layer; 0 is the embedding."""
    if layer == 0:
        return 0, "the embedding on stage 0", False
    stage = layout.stage_of_layer(layers, layer)
    if layer == 1 or layout.pp == 1 or (layer - 1) % (layers // (layout.pp * layout.vpp)):
        return stage, f"layer {layer} on stage {stage}", False
    before = layout.stage_of_layer(layers, layer - 1)
    return stage, f"layer {layer} on stage {stage}, the first after the hop from stage {before}", True
