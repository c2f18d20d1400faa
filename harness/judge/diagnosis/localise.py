"""The first layer, document and token of step 0 at which a cell differs from its control.

And the boundaries at it, where packing and parallelism meet and where their bugs show: arithmetic on the plan alone.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from harness.core.cell.layout import Layers, Layout
from harness.core.packing.arithmetic import MicroBatch, PlacedDocument, zigzag
from harness.core.run.tensor_records import Fingerprint
from harness.core.text import counted
from harness.core.tolerances import Bound
from harness.judge.evidence.assemble import ParameterGradient
from harness.judge.evidence.cell_evidence import CellEvidence
from harness.judge.locations import numbered
from harness.judge.stats.distance import beyond, distance, fingerprint_distance, finite

DOCUMENT_BOUNDARY = "document boundary"  # the slot before or after belongs to another document
CHUNK_EDGE = "cp chunk edge"  # the slot before or after is on another cp rank
SEQUENCE_EDGE = "sequence-parallel edge"  # the slot before or after, on this cp rank, is on another tp rank
PADDING = "padding"  # the slot before or after is padding
STAGE_BOUNDARY = "stage boundary"  # the first layer after a hop between stages
TP_SHARD = "tp shard"  # only some tp ranks' shards of a parameter differ
EMBEDDING = "embedding"
OUTPUT_LAYER = "output layer"  # with everything between the last layer and the loss

_LAYER = re.compile(r"^decoder\.layers\.(\d+)\.")


@dataclass(frozen=True, kw_only=True)
class Boundaries:
    """The boundaries at a location: their names, descriptions, and further keys for `where`."""

    boundaries: tuple[str, ...] = ()
    words: tuple[str, ...] = ()
    where: Mapping[str, Any] = field(default_factory=dict)

    def __add__(self, other: Boundaries) -> Boundaries:
        boundaries = tuple(dict.fromkeys((*self.boundaries, *other.boundaries)))
        return Boundaries(boundaries=boundaries, words=self.words + other.words, where={**self.where, **other.where})

    @property
    def text(self) -> str:
        """Return '; location: a; b', or ''."""
        return f"; location: {'; '.join(self.words)}" if self.words else ""

    @property
    def keys(self) -> dict[str, Any]:
        """Return keys for a finding's `where`."""
        return {**self.where, **({"boundaries": list(self.boundaries)} if self.boundaries else {})}


NOTHING = Boundaries()


def of_token(batch: MicroBatch, layout: Layout, document: int, token: int) -> Boundaries:
    """Return boundaries at a token of a document, by its position; NOTHING when the micro-batch does not hold it."""
    placed = batch.placed
    number = next((index for index, candidate in enumerate(placed) if candidate.document.index == document), None)
    if number is None or not 0 <= token < placed[number].document.length:
        return NOTHING
    segment = placed[number]
    boundaries = _boundary(batch, placed, number, token) + _padding(placed, number, token)
    if layout.cp > 1 and batch.style.split is zigzag:
        boundaries += _chunk(segment, layout.cp, token)
    if layout.sp and layout.tp > 1:
        boundaries += _sequence_share(batch, layout, segment, token)
    return boundaries


def _boundary(batch: MicroBatch, placed: Sequence[PlacedDocument], number: int, token: int) -> Boundaries:
    """Return DOCUMENT_BOUNDARY at the first or last token of a document with a neighbour in its pack."""
    if not batch.style.packed:
        return NOTHING
    last = placed[number].document.length - 1
    sides = [("first", number - 1, "after")] if token == 0 else []
    sides += [("last", number + 1, "before")] if token == last else []
    edges = NOTHING
    for which, neighbour, side in sides:
        if 0 <= neighbour < len(placed):
            neighbour_document = placed[neighbour].document.index
            words = f"document boundary, the {which} token of the document, right {side} document {neighbour_document}"
            where = {"neighbour": neighbour_document} if not edges.where else {}
            edges += Boundaries(boundaries=(DOCUMENT_BOUNDARY,), words=(words,), where=where)
    return edges


def _padding(placed: Sequence[PlacedDocument], number: int, token: int) -> Boundaries:
    segment = placed[number]
    after = segment.padded_length - segment.document.length
    edges = NOTHING
    if token == 0 and number > 0:
        before = segment.start - placed[number - 1].start - placed[number - 1].document.length
        edges += _padding_words(before, "before")
    if token == segment.document.length - 1:
        edges += _padding_words(after, "after")
    return edges


def _padding_words(slots: int, side: str) -> Boundaries:
    if slots <= 0:
        return NOTHING
    return Boundaries(boundaries=(PADDING,), words=(f"{counted(slots, 'padding slot')} right {side} the token",))


def holder(segment: int, cp: int, position: int) -> tuple[int, int]:
    """Return (chunk, cp rank) that hold a position of `segment` slots: rank r has chunks r and 2 cp - 1 - r."""
    chunk = position // (segment // (2 * cp))
    return chunk, min(chunk, 2 * cp - 1 - chunk)


def _chunk(segment: PlacedDocument, cp: int, token: int) -> Boundaries:
    """Return the cp rank that holds a token, and whether a neighbour in its segment is held by another."""
    slots = segment.padded_length
    if slots % (2 * cp):
        return NOTHING  # cannot be cut into chunks; the plan makes no such segment
    chunk, rank = holder(slots, cp, token)
    others = {holder(slots, cp, neighbour)[1] for neighbour in (token - 1, token + 1) if 0 <= neighbour < slots} - {
        rank
    }
    held = f"chunk {chunk} of {2 * cp}, held by cp rank {rank}"
    if not others:
        return Boundaries(where={"cp": rank})
    neighbours = " and ".join(str(neighbour_rank) for neighbour_rank in sorted(others))
    return Boundaries(
        boundaries=(CHUNK_EDGE,), words=(f"cp chunk edge, {held}, beside cp rank {neighbours}",), where={"cp": rank}
    )


def _sequence_share(batch: MicroBatch, layout: Layout, segment: PlacedDocument, token: int) -> Boundaries:
    """Return SEQUENCE_EDGE at a token: each tp rank holds a contiguous share of the slots of its cp rank."""
    slot = segment.start + token
    for rank in range(layout.cp):
        for row in batch.local_slots(layout.cp, rank):
            if slot in row and len(row) % layout.tp == 0:
                size, index = len(row) // layout.tp, row.index(slot)
                share, within = divmod(index, size)
                edge = (within == 0 and share > 0) or (within == size - 1 and share < layout.tp - 1)
                words = f"sequence-parallel edge, held by tp rank {share}"
                return Boundaries(boundaries=(SEQUENCE_EDGE,), words=(words,)) if edge else NOTHING
    return NOTHING


def of_layer(layout: Layout, layers: Layers, layer: int) -> Boundaries:
    """Return boundaries at a layer, by its global number from 1; 0 is the embedding."""
    if layer == 0:
        return Boundaries(boundaries=(EMBEDDING,), words=("the embedding on stage 0",))
    hop = hop_before(layout, layers, layer)
    if hop is None:
        return NOTHING
    words = f"stage boundary, the first layer after the hop from stage {hop[0]} to stage {hop[1]}"
    return Boundaries(boundaries=(STAGE_BOUNDARY,), words=(words,))


def hop_before(layout: Layout, layers: Layers, layer: int) -> tuple[int, int] | None:
    """Return (stage before, stage) when activations travel between stages right before this layer."""
    if layer <= 1 or layout.pp == 1:
        return None
    before, after = (layout.chunk_of_layer(layers, number) for number in (layer - 1, layer))
    return None if before == after else (before % layout.pp, after % layout.pp)


def of_parameter(layout: Layout, layers: Layers, name: str, shards: Sequence[int] | None = None) -> Boundaries:
    """Return boundaries at a parameter, by its global name; `shards`: tp ranks whose shard differs, None if unknown."""
    edges = NOTHING
    if name.startswith("embedding."):
        edges = Boundaries(boundaries=(EMBEDDING,), words=("the embedding",))
    elif name.startswith("output_layer."):
        edges = Boundaries(boundaries=(OUTPUT_LAYER,), words=("the output layer",))
    elif layer := layer_of(name):
        edges = of_layer(layout, layers, layer)
    if shards and len(shards) < layout.tp:
        words = f"tp shard, wrong only on {numbered('tp rank', shards)}"
        edges += Boundaries(boundaries=(TP_SHARD,), words=(words,), where={"tp": shards[0]})
    return edges


def layer_of(name: str) -> int:
    """Return the global layer number, from 1, in a parameter's name; 0 when it belongs to no decoder layer."""
    match = _LAYER.match(name)
    return int(match.group(1)) + 1 if match else 0


def of_output() -> Boundaries:
    """Return OUTPUT_LAYER, for a wrong loss after layers that are all right."""
    words = "output layer: all layers are right, so the final norm, the output layer, the labels or the loss are wrong"
    return Boundaries(boundaries=(OUTPUT_LAYER,), words=(words,))


Outputs = Mapping[int, Mapping[int, Fingerprint]]  # layer (0: embedding) -> document


class LayerOff(NamedTuple):
    """A layer after which documents differ."""

    layer: int  # global, from 1; 0 is the embedding
    documents: list[int]  # that differ, ascending
    off: dict[int, float]  # every document -> distance; infinite where a fingerprint is missing on either side


def first_layer_off(evidence: CellEvidence, control: CellEvidence) -> LayerOff | None:
    """Return the first layer after which a document's activations exceed the bound; None when all are right.

    Meaningful only if all ranks completed step 0.
    """
    documents = {
        *evidence.document_positions[0],
        *(document for layer in evidence.activations.values() for document in layer),
    }
    return layer_off(evidence.activations, control.activations, documents, evidence.tolerances.activation)


def layer_off(measured: Outputs, expected: Outputs, documents: Iterable[int], bound: Bound) -> LayerOff | None:
    """Return the first layer of `expected` after which a document is off.

    Values that are not finite are left to `finiteness`.
    """
    for layer, expected_layer in expected.items():
        measured_layer, off = measured.get(layer, {}), {}
        for document in sorted(documents):
            if document not in measured_layer or document not in expected_layer:
                off[document] = math.inf
            elif finite(measured_layer[document]):
                off[document] = fingerprint_distance(measured_layer[document], expected_layer[document], bound)
        wrong = [document for document, value in off.items() if beyond(value, bound)]
        if wrong:
            return LayerOff(layer, wrong, off)
    return None


def first_token_off(evidence: CellEvidence, control: CellEvidence, document: int) -> int | None:
    """Return the position of the document's first token whose loss in step 0 differs; None when no recorded one does.

    Attention is causal, so nothing before the first wrong token is wrong in any layer. Ranks record a limited number.
    """
    bound = evidence.tolerances.document_loss
    measured, expected = evidence.document_tokens.get(document, {}), control.document_tokens.get(document, {})
    for position in sorted(expected):
        loss, expected_loss = measured.get(position), expected[position]
        if loss is not None and math.isfinite(loss) and beyond(distance(loss, expected_loss, bound), bound):
            return position
    return None


def token_boundaries(evidence: CellEvidence, document: int, token: int | None) -> Boundaries:
    """Return boundaries at a token of step 0; NOTHING if the token is unknown."""
    home = evidence.document_positions[0].get(document)
    if home is None or token is None:
        return NOTHING
    batch = evidence.plan[0][home.dp][home.micro_batch].batch
    return of_token(batch, evidence.layout, document, token)


def shards_off(measured: ParameterGradient, expected: ParameterGradient, bound: Bound) -> list[int] | None:
    """Return tp ranks whose shard of a gradient differs from the same part of the control's gradient.

    None when the parameter is not sharded, or the control did not record parts that add up to these shards.
    """
    count, parts = len(measured.shards), len(expected.parts)
    if count < 2 or not parts or parts % count:
        return None
    each = parts // count
    return [
        rank
        for rank, shard in enumerate(measured.shards)
        if finite(shard) and beyond(fingerprint_distance(shard, expected.part(rank * each, each), bound), bound)
    ]
