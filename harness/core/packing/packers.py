"""Packers: documents of a step -> rows -> micro-batches of every replica.

Data paths that pack while they read use next fit, and may split rows; those that pack offline use first-fit decreasing.
What only one project does is in its spec.py.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from harness.core.cell.layout import Layout
from harness.core.packing.arithmetic import MetadataStyle, MicroBatch, PackMetadata, PlacedDocument, Row
from harness.core.packing.documents import Document
from harness.core.packing.options import align_up
from harness.core.packing.sharing import Share

Size = Callable[[Document], int]  # slots of a document with its padding
Groups = list[list[Document]]  # the documents of every row


def next_fit(documents: Sequence[Document], size: Size, seq_length: int, most: int | None = None) -> Groups:
    """Return documents in order; one that does not fit, or is the one after `most`, begins a row."""
    groups: Groups = []
    used = 0
    for document in documents:
        needed = size(document)
        if groups and len(groups[-1]) != most and used + needed <= seq_length:
            groups[-1].append(document)
            used += needed
        else:
            groups.append([document])
            used = needed
    return groups


def one_per_row(documents: Sequence[Document], size: Size, seq_length: int) -> Groups:
    """Return a row for each document, in order."""
    return [[document] for document in documents]


def first_fit_decreasing(documents: Sequence[Document], size: Size, seq_length: int) -> Groups:
    """From the longest document to the shortest, each in the first row with room; equal ones keep their order."""
    groups: Groups = []
    free = _FreeSlots(len(documents), seq_length)
    sizes = [(size(document), document) for document in documents]
    for needed, document in sorted(sizes, key=lambda item: -item[0]):
        row = len(groups) if needed > seq_length else free.first(needed)
        if row == len(groups):
            groups.append([])
        groups[row].append(document)
        free.take(row, needed)
    return groups


class _FreeSlots:
    """Free slots of each row, as a tree of maxima: the first row with enough room is found in log(rows) steps."""

    def __init__(self, rows: int, room: int) -> None:
        self._leaves = 1 << max(rows - 1, 0).bit_length()
        self._most = [room] * (2 * self._leaves)  # node n has the children 2 n and 2 n + 1; rows are the last level

    def first(self, size: int) -> int:
        """Return the first row with at least `size` free slots, which may be the first empty one."""
        node = 1
        while node < self._leaves:
            node *= 2
            node += self._most[node] < size
        return node - self._leaves

    def take(self, row: int, size: int) -> None:
        node = row + self._leaves
        self._most[node] -= size
        while node > 1:
            node //= 2
            self._most[node] = max(self._most[2 * node], self._most[2 * node + 1])


def halve_widest(groups: Groups, made: int) -> bool:
    """Halve the row with the most documents; False if every row has only one."""
    widest = max(range(len(groups)), key=lambda index: len(groups[index]))
    half = len(groups[widest]) // 2
    if half:
        groups[widest : widest + 1] = [groups[widest][:half], groups[widest][half:]]
    return half > 0


def as_they_are(blocks: Sequence[MicroBatch]) -> list[MicroBatch]:
    """Return micro-batches of which none depends on the others."""
    return list(blocks)


@dataclass(frozen=True, kw_only=True)
class Packer:
    """How the documents of a step become rows, and rows the micro-batches of every replica."""

    fit: Callable[[Sequence[Document], Size, int], Groups] = next_fit  # of data paths that pack
    # Splits a row, to have one more, and says whether it could; it also gets the number of rows that `fit` made.
    # None: rows are never split.
    split: Callable[[Groups, int], bool] | None = halve_widest
    # Instead of both: shares out a step to replicas by the sizes of its documents, with their padding or without.
    share: Share | None = None
    shares_padded: bool = False
    row_multiple: int = 1  # rows are padded to a multiple of this many slots
    tails: bool = False  # the padding of a row is a segment of its own; false: its last document takes it
    beyond: bool = False  # rows are padded to that multiple although it may exceed seq_length
    even_shares: bool = False  # replicas contribute equal numbers of documents
    row_by_row: bool = False  # replicas take rows one at a time, not a micro-batch at a time
    collate: Callable[[Sequence[MicroBatch]], list[MicroBatch]] = as_they_are  # those of a replica
    describe: Callable[[Sequence[Row]], PackMetadata] | None = None  # of all rows of a step

    @property
    def splits_to_single_documents(self) -> bool:
        """Whether rows can be split until each has one document."""
        return self.split is halve_widest

    def rows(self, documents: Sequence[Document], style: PackingStyle, *, seq_length: int, multiple: int) -> list[Row]:
        """Return rows of at most seq_length slots; their number is made a multiple of `multiple` by splitting rows.

        ValueError if there are too few documents for that, or if the data path never splits rows, or cannot share the
        documents out.
        """
        if self.share is not None and style.packed:
            groups = self._shared(self.share, documents, style)
        else:
            fit = self.fit if style.packed else one_per_row
            groups = fit(documents, style.size, seq_length)
        made = len(groups)
        while len(groups) % multiple:
            if self.split is None or not self.split(groups, made):
                raise ValueError(
                    f"{len(documents)} documents make {len(groups)} rows of {seq_length} tokens, which cannot be split "
                    f"into a multiple of {multiple} (dp x micro_batch_size, and pp when interleaved)"
                )
        return [self._row(group, style, seq_length) for group in groups]

    def _shared(self, share: Share, documents: Sequence[Document], style: PackingStyle) -> Groups:
        """Groups of all replicas in turn."""
        last = style.last_token_slots
        sizes = [style.size(item) if self.shares_padded else item.length + last for item in documents]
        return [[documents[place] for place in bin] for turn in zip(*share(sizes), strict=True) for bin in turn]

    def _row(self, documents: Sequence[Document], style: PackingStyle, seq_length: int) -> Row:
        placed: list[PlacedDocument] = []
        start = 0
        for document in documents:
            size = style.size(document)
            placed.append(PlacedDocument(document=document, start=start, padded_length=size))
            start += size
        row = Row(placed=tuple(placed))
        length = align_up(start, self.row_multiple)
        if not self.beyond:
            length = max(start, min(length, seq_length))
        length = style.row_length or length
        return row.tailed_to(length) if self.tails else row.stretched_to(length)

    def micro_batches(
        self, rows: Sequence[Row], style: PackingStyle, *, dp: int, micro_batch_size: int
    ) -> list[list[MicroBatch]]:
        """Return micro-batches of the rows, indexed [dp][i]; replicas take rows in turn."""
        metadata = self.describe(rows) if self.describe else None
        blocks = _blocks(rows, 1 if self.row_by_row else micro_batch_size)
        replicas = [[row for block in blocks[replica::dp] for row in block] for replica in range(dp)]
        return [
            self.collate(
                [MicroBatch(rows=block, style=style, metadata=metadata) for block in _blocks(taken, micro_batch_size)]
            )
            for taken in replicas
        ]

    def as_dealt(self, replicas: Sequence[Sequence[MicroBatch]]) -> list[Row]:
        """Return the rows of `micro_batches` in the order in which replicas take them."""
        taken = [[row for micro_batch in replica for row in micro_batch.rows] for replica in replicas]
        size = 1 if self.row_by_row else len(replicas[0][0].rows)
        turns = zip(*(_blocks(rows, size) for rows in taken), strict=True)
        return [row for turn in turns for block in turn for row in block]


def _blocks(rows: Sequence[Row], size: int) -> list[tuple[Row, ...]]:
    return [tuple(rows[start : start + size]) for start in range(0, len(rows), size)]


@dataclass(frozen=True, kw_only=True)
class PackingStyle(MetadataStyle):
    """How a data path pads documents, packs them into rows, and describes the rows to attention."""

    document_multiple: int  # every document is padded to a multiple of this many tokens
    row_length: int | None  # fixed row length in slots; None: as long as needed
    pads_with_end: bool = False  # padding slots hold the token that ends documents, not PADDING (oracle/drawing.py)
    packer: Packer = Packer()

    @property
    def ends_at_seq_length(self) -> bool:
        """Whether the padding of a row may end at seq_length, whatever the documents are."""
        return self.row_length is not None or (self.packer.row_multiple > 1 and not self.packer.beyond)

    def size(self, document: Document) -> int:
        """Return slots of a document with its padding, not counting what it takes of the row's rest."""
        return align_up(document.length + self.last_token_slots, self.document_multiple)


def row_of(document: Document, style: PackingStyle) -> Row:
    """Return a row of one document with its padding."""
    return Row(placed=(PlacedDocument(document=document, start=0, padded_length=style.size(document)),))


def row_multiple(layout: Layout, micro_batch_size: int) -> int:
    """Return the number that a step's rows must be a multiple of; interleaving needs a multiple of pp micro-batches."""
    return layout.dp * micro_batch_size * (layout.pp if layout.vpp > 1 else 1)


def plan_step(
    documents: Sequence[Document],
    style: PackingStyle,
    layout: Layout,
    *,
    seq_length: int,
    micro_batch_size: int,
    rows_of: Layout | None = None,
) -> list[list[MicroBatch]]:
    """Return micro-batches of one step, indexed [dp][i].

    `rows_of`: the layout that rows are split for, if it is not `layout`.
    """
    if style.packer.even_shares and len(documents) % layout.dp:
        raise ValueError(f"{len(documents)} documents cannot be shared evenly by dp = {layout.dp} replicas")
    multiple = row_multiple(rows_of or layout, micro_batch_size)
    rows = style.packer.rows(documents, style, seq_length=seq_length, multiple=multiple)
    return style.packer.micro_batches(rows, style, dp=layout.dp, micro_batch_size=micro_batch_size)
