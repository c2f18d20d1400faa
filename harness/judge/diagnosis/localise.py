"""The first layer, document and token of step 0 at which a cell differs from its control."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from harness.core.run.tensor_records import Fingerprint
from harness.core.tolerances import Bound
from harness.judge.diagnosis import boundaries
from harness.judge.diagnosis.boundaries import Boundaries
from harness.judge.evidence.assemble import ParameterGradient
from harness.judge.evidence.cell_evidence import CellEvidence
from harness.judge.stats.distance import beyond, distance, fingerprint_distance, finite

Outputs = Mapping[int, Mapping[int, Fingerprint]]  # layer (0: embedding) -> document


class LayerOff(NamedTuple):
    layer: int  # global, from 1; 0 is the embedding
    documents: list[int]  # that differ, ascending
    off: dict[int, float]  # every document -> distance; infinite where a fingerprint is missing on either side


def first_layer_off(evidence: CellEvidence, control: CellEvidence) -> LayerOff | None:
    """The first layer after which a document's activations differ beyond the bound; None when all are right.

    Meaningful only if all ranks completed step 0.
    """
    documents = {*evidence.homes[0], *(document for layer in evidence.activations.values() for document in layer)}
    return layer_off(evidence.activations, control.activations, documents, evidence.tolerances.activation)


def layer_off(measured: Outputs, expected: Outputs, documents: Iterable[int], bound: Bound) -> LayerOff | None:
    """The first layer of `expected` after which a document is off; values that are not finite are left to
    `finiteness`.
    """
    for layer, right in expected.items():
        found, off = measured.get(layer, {}), {}
        for document in sorted(documents):
            if document not in found or document not in right:
                off[document] = math.inf
            elif finite(found[document]):
                off[document] = fingerprint_distance(found[document], right[document], bound)
        wrong = [document for document, value in off.items() if beyond(value, bound)]
        if wrong:
            return LayerOff(layer, wrong, off)
    return None


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
