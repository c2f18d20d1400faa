"""The first layer, document and token of step 0 at which a cell differs from its control."""

from __future__ import annotations

import math
from typing import NamedTuple

from harness.core.tolerances import Bound
from harness.judge.diagnosis import boundaries
from harness.judge.diagnosis.boundaries import Boundaries
from harness.judge.evidence.assemble import ParameterGradient
from harness.judge.evidence.cell_evidence import CellEvidence
from harness.judge.stats.distance import beyond, distance, fingerprint_distance, finite


class LayerOff(NamedTuple):
    layer: int  # global, from 1; 0 is the embedding
    documents: list[int]  # that differ, ascending
    off: dict[int, float]  # every document -> distance; infinite where a fingerprint is missing on either side


def first_layer_off(evidence: CellEvidence, control: CellEvidence) -> LayerOff | None:
    """The first layer after which a document's activations differ beyond the bound; None when all are right.

    Meaningful only if all ranks completed step 0.
    """
    bound = evidence.tolerances.activation
    for layer in range(evidence.cell.config.model.layers + 1):
        off = _activations_off(evidence, control, layer)
        wrong = sorted(document for document, value in off.items() if beyond(value, bound))
        if wrong:
            return LayerOff(layer, wrong, off)
    return None


def _activations_off(evidence: CellEvidence, control: CellEvidence, layer: int) -> dict[int, float]:
    """Document -> distance of its activations after a layer in step 0; infinite where a fingerprint is missing."""
    measured, expected = evidence.activations.get(layer, {}), control.activations.get(layer, {})
    off = {}
    for document in sorted({*measured, *expected, *evidence.homes[0]}):
        found, right = measured.get(document), expected.get(document)
        if found is None or right is None:
            off[document] = math.inf
        elif finite(found):
            off[document] = fingerprint_distance(found, right, evidence.tolerances.activation)
    return off


def first_token_off(evidence: CellEvidence, control: CellEvidence, document: int) -> int | None:
    """Position of the document's first token whose loss in step 0 differs; None when no recorded one does.

    Attention is causal, so nothing before the first wrong token is wrong in any layer. Ranks record a limited number.
    """
    bound = evidence.tolerances.document_loss
    measured, expected = evidence.document_tokens.get(document, {}), control.document_tokens.get(document, {})
    for position in sorted(expected):
        found, right = measured.get(position), expected[position]
        if found is not None and math.isfinite(found) and beyond(distance(found, right, bound), bound):
            return position
    return None


def token_boundaries(evidence: CellEvidence, document: int, token: int | None) -> Boundaries:
    """Boundaries at a token of step 0; NOTHING if the token is unknown."""
    home = evidence.homes[0].get(document)
    if home is None or token is None:
        return boundaries.NOTHING
    batch = evidence.plan[0][home.dp][home.micro_batch].batch
    return boundaries.of_token(batch, evidence.layout, document, token)


def shards_off(found: ParameterGradient, right: ParameterGradient, bound: Bound) -> list[int] | None:
    """tp ranks whose shard of a gradient differs from the same part of the control's gradient.

    None when the parameter is not sharded, or the control did not record parts that add up to these shards.
    """
    count, parts = len(found.shards), len(right.parts)
    if count < 2 or not parts or parts % count:
        return None
    each = parts // count
    return [
        rank
        for rank, shard in enumerate(found.shards)
        if finite(shard) and beyond(fingerprint_distance(shard, right.part(rank * each, each), bound), bound)
    ]
