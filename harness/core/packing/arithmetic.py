"""Packing arithmetic: documents -> rows -> micro-batches -> what every rank must receive.

Integers, no tensors: the judge computes the expected values with these functions, the probe builds its batches with
them, and property tests cover them. A slot is one token position of the physical (padded) stream.

Data paths that pack while they read use next fit, and may split rows; those that pack offline use first-fit decreasing.
Megatron-LM's samplers deal to replicas, and its packing scheduler deals again. Data paths count the work of a step for
FLOPs: micro-batches, sum of lengths, sum of squared lengths.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TypeVar

from harness.core.cell.layout import Layout
from harness.core.packing.documents import Document
from harness.core.packing.options import PackingStyle, align_up

PAD = -1  # document index of a padding slot


@dataclass(frozen=True, kw_only=True)
class PlacedDocument:
    """A document in a row: it takes the slots [start, start + padded_length), real tokens first."""

    document: Document
    start: int
    padded_length: int


@dataclass(frozen=True, kw_only=True)
class Row:
    """One row of the batch dimension before rows of a micro-batch are merged."""

    placed: tuple[PlacedDocument, ...]
    tail: int = 0  # slots after the last document that form a segment without a document

    @property
    def length(self) -> int:
        """Physical length in slots."""
        last = self.placed[-1]
        return last.start + last.padded_length + self.tail


@dataclass(frozen=True, kw_only=True)
class PackedParams:
    """The values of megatron.core.packed_seq_params.PackedSeqParams that attention must receive.

    cu_seqlens_* are offsets in tokens (int32, 1-D, from 0), max_seqlen_* a Python int in tokens, all global:
    before the split over cp and tp. `*_padded` is None where the data path does not supply it.
    """

    cu_seqlens_q: tuple[int, ...]
    cu_seqlens_kv: tuple[int, ...]
    cu_seqlens_q_padded: tuple[int, ...] | None
    cu_seqlens_kv_padded: tuple[int, ...] | None
    max_seqlen_q: int
    max_seqlen_kv: int


@dataclass(frozen=True, kw_only=True)
class PackMetadata:
    """What Megatron-Bridge records about all rows of a packed file, so that the metadata of all rows has one shape."""

    most_documents: int  # in a row
    longest: int  # slots of the longest document with its padding
    shortest_row: int  # slots of the shortest row without its tail


@dataclass(frozen=True, kw_only=True)
class MicroBatch:
    """Rows that go through the model together; packed rows are merged into one stream of shape (1, slots)."""

    rows: tuple[Row, ...]
    style: PackingStyle
    metadata: PackMetadata | None = None  # of the step, where the style has fixed_entries
    entries: int = 0  # the least number of offsets; the last one is repeated

    @property
    def placed(self) -> list[PlacedDocument]:
        """Documents with starts counted in the merged stream."""
        merged = []
        offset = 0
        for row in self.rows:
            for item in row.placed:
                merged.append(
                    PlacedDocument(document=item.document, start=offset + item.start, padded_length=item.padded_length)
                )
            offset += row.length
        return merged

    @cached_property
    def slots(self) -> int:
        return sum(row.length for row in self.rows)

    @cached_property
    def real_tokens(self) -> int:
        return sum(item.document.length for item in self.placed)

    @cached_property
    def loss_tokens(self) -> int:
        """Number of labels that count in the loss."""
        return sum(item.document.loss_tokens for item in self.placed)

    def params(self) -> PackedParams | None:
        """The expected metadata; None for unpacked rows."""
        if not self.style.packed:
            return None
        real, padded = [0], [0]
        for length, padded_length in self.segments:
            real.append(real[-1] + length)
            padded.append(padded[-1] + padded_length)
        longest = self.slots if self.style.longest_is_row else max(size for _, size in self.segments)
        if self.metadata is not None:  # offsets: 0, one per document, the tail; GPTSFTPackedDataset.collate_fn
            missing = self.metadata.most_documents + 2 - len(padded)
            real, padded = real + [real[-1]] * missing, padded + [padded[-1]] * missing
            longest = max(self.metadata.longest, self.slots - self.metadata.shortest_row)
        repeated = max(self.entries, (self.style.most_documents or 0) + 2) - len(padded)
        real, padded = real + [real[-1]] * repeated, padded + [padded[-1]] * repeated
        outer = tuple(padded)
        inner = tuple(real) if self.style.real_lengths else outer
        explicit = outer if self.style.real_lengths or self.style.offsets_twice else None
        return PackedParams(
            cu_seqlens_q=inner,
            cu_seqlens_kv=inner,
            cu_seqlens_q_padded=explicit,
            cu_seqlens_kv_padded=explicit,
            max_seqlen_q=longest,
            max_seqlen_kv=longest,
        )

    @property
    def segments(self) -> list[tuple[int, int]]:
        """(real length, padded length) of every segment of the merged stream: documents and the tails of rows."""
        segments = []
        for row in self.rows:
            last = self.style.last_token_slots
            segments += [(item.document.length + last, item.padded_length) for item in row.placed]
            segments += [(row.tail if self.style.tail_is_real else 0, row.tail)] if row.tail else []
        return segments

    def slot_owners(self) -> list[tuple[int, int]]:
        """(document index or PAD, position within the segment) of every slot of the merged stream."""
        owners = []
        for row in self.rows:
            for item in row.placed:
                for position in range(item.padded_length):
                    owners.append((item.document.index if position < item.document.length else PAD, position))
            owners += [(PAD, position) for position in range(row.tail)]
        return owners

    def local_slots(self, cp: int, cp_rank: int) -> list[list[int]]:
        """Stream slots that a context-parallel rank holds, in its order: one list per row of the batch dimension.

        Packed: one merged row, zigzag per document. Unpacked: one list per row, zigzag over the whole row.
        """
        if self.style.packed:
            lengths = (padded_length for _, padded_length in self.segments)
            return [zigzag([0, *itertools.accumulate(lengths)], cp, cp_rank)]
        length = self.rows[0].length
        return [zigzag([index * length, (index + 1) * length], cp, cp_rank) for index in range(len(self.rows))]


def zigzag(bounds: Sequence[int], cp: int, cp_rank: int) -> list[int]:
    """Slots of one context-parallel rank when every segment is cut into 2 * cp chunks.

    Of each segment in turn, rank r takes chunk r, then chunk 2 * cp - 1 - r, like
    transformer_engine_torch.thd_get_partitioned_indices for aligned segments.
    ValueError if the length of a segment is not a multiple of 2 * cp.
    """
    if cp == 1:
        return list(range(bounds[0], bounds[-1]))
    chosen: list[int] = []
    for start, end in itertools.pairwise(bounds):
        chunk, rest = divmod(end - start, 2 * cp)
        if rest:
            raise ValueError(f"segment [{start}, {end}) has {end - start} slots, not a multiple of 2 * cp = {2 * cp}")
        chosen += range(start + cp_rank * chunk, start + (cp_rank + 1) * chunk)
        chosen += range(end - (cp_rank + 1) * chunk, end - cp_rank * chunk)
    return chosen


def pack(documents: Sequence[Document], style: PackingStyle, *, seq_length: int, multiple: int) -> list[Row]:
    """Rows of at most seq_length slots holding the documents in order (next fit), or by first fit with `longest_first`.

    The number of rows is made a multiple of `multiple` by splitting rows. ValueError if there are too few documents
    for that, or if the data path never splits rows.
    """
    groups = first_fit(documents, style, seq_length) if style.longest_first else next_fit(documents, style, seq_length)
    made = len(groups)
    while len(groups) % multiple:
        split = style.splits and (
            split_last(groups, made, style.split_first) if style.split_last else split_widest(groups)
        )
        if not split:
            raise ValueError(
                f"{len(documents)} documents make {len(groups)} rows of {seq_length} tokens, which cannot be split "
                f"into a multiple of {multiple} (dp x micro_batch_size, and pp when interleaved)"
            )
    return [_place(group, style, seq_length) for group in groups]


def _place(documents: Sequence[Document], style: PackingStyle, seq_length: int) -> Row:
    placed = []
    start = 0
    for index, document in enumerate(documents):
        size = style.size(document)
        if style.row_length is not None and not style.tail_segment and index == len(documents) - 1:
            size = style.row_length - start
        placed.append(PlacedDocument(document=document, start=start, padded_length=size))
        start += size
    filled = style.row_length or min(align_up(start, style.tail_multiple), seq_length)
    return Row(placed=tuple(placed), tail=filled - start if style.tail_segment else 0)


def _padded_to_longest(rows: Sequence[Row]) -> tuple[Row, ...]:
    """Rows of one document each, all padded to the longest."""
    width = max(row.length for row in rows)
    return tuple(Row(placed=(replace(row.placed[0], padded_length=width),)) for row in rows)


def _even(blocks: Sequence[MicroBatch]) -> list[MicroBatch]:
    """The micro-batches of a replica, collated at once: rows get the tails that make them as long as the longest."""
    width = max(row.length for block in blocks for row in block.rows)
    wide = [
        replace(block, rows=tuple(replace(row, tail=row.tail + width - row.length) for row in block.rows))
        for block in blocks
    ]
    entries = max(len(block.segments) for block in wide) + 1
    return [replace(block, entries=entries) for block in wide]


def _last_stretched(blocks: Sequence[MicroBatch]) -> list[MicroBatch]:
    """The micro-batches of a replica, as long as the longest: their last documents take the rest."""
    return [_stretched(block, max(one.slots for one in blocks) - block.slots) for block in blocks]


def _stretched(block: MicroBatch, more: int) -> MicroBatch:
    *rows, row = block.rows
    *placed, last = row.placed
    wide = replace(last, padded_length=last.padded_length + more)
    return replace(block, rows=(*rows, replace(row, placed=(*placed, wide))))


def _metadata(rows: Sequence[Row]) -> PackMetadata:
    return PackMetadata(
        most_documents=max(len(row.placed) for row in rows),
        longest=max(item.padded_length for row in rows for item in row.placed),
        shortest_row=min(row.length - row.tail for row in rows),
    )


def row_multiple(layout: Layout, micro_batch_size: int) -> int:
    """The number that a step's rows must be a multiple of; interleaving needs a multiple of pp micro-batches."""
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
    """Micro-batches of one step, indexed [dp][i]; replicas take rows in turn, micro_batch_size at a time.

    With `even_step` they take them one at a time. `rows_of`: the layout that rows are split for, if it is not `layout`.
    """
    if style.even_shares and len(documents) % layout.dp:
        raise ValueError(f"{len(documents)} documents cannot be shared evenly by dp = {layout.dp} replicas")
    multiple = row_multiple(rows_of or layout, micro_batch_size)
    rows = pack(documents, style, seq_length=seq_length, multiple=multiple)
    metadata = _metadata(rows) if style.fixed_entries else None

    def micro_batches(taken: Sequence[Row]) -> list[MicroBatch]:
        groups = [tuple(taken[start : start + micro_batch_size]) for start in range(0, len(taken), micro_batch_size)]
        if style.even_rows:
            groups = [_padded_to_longest(group) for group in groups]
        return [MicroBatch(rows=group, style=style, metadata=metadata) for group in groups]

    if style.even_step:
        return [_even(micro_batches(rows[dp :: layout.dp])) for dp in range(layout.dp)]
    blocks = micro_batches(rows)
    replicas = [blocks[dp :: layout.dp] for dp in range(layout.dp)]
    return [_last_stretched(own) for own in replicas] if style.even_last else replicas


def next_fit(documents: Sequence[Document], style: PackingStyle, seq_length: int) -> list[list[Document]]:
    """Documents in order, or with `descending` from the longest to the shortest, equal ones in order."""
    if style.descending:
        documents = sorted(documents, key=lambda document: document.length, reverse=True)
    groups: list[list[Document]] = []
    used = 0
    for document in documents:
        size = style.size(document)
        full = bool(groups) and len(groups[-1]) == style.most_documents
        if groups and not full and style.packed and not style.one_per_row and used + size <= seq_length:
            groups[-1].append(document)
            used += size
        else:
            groups.append([document])
            used = size
    return groups


def split_widest(groups: list[list[Document]]) -> bool:
    """Halve the row with the most documents; False if every row has only one."""
    widest = max(range(len(groups)), key=lambda index: len(groups[index]))
    half = len(groups[widest]) // 2
    if half:
        groups[widest : widest + 1] = [groups[widest][:half], groups[widest][half:]]
    return half > 0


def split_last(groups: list[list[Document]], made: int, first: bool) -> bool:
    """Move the last document of the last row with several documents to a new row at the end.

    Only the first `made` rows are split, the first one with `first` only, as in
    megatron.core.datasets.data_schedule.DpBalancedScheduler.get_groups_and_subsamples.
    """
    last = next((index for index in range(made - 1, -1 if first else 0, -1) if len(groups[index]) > 1), None)
    if last is not None:
        groups.append([groups[last].pop()])
    return last is not None


def first_fit(documents: Sequence[Document], style: PackingStyle, seq_length: int) -> list[list[Document]]:
    """First-fit decreasing; documents of equal length keep their order."""
    groups: list[list[Document]] = []
    free = _FreeSlots(len(documents), seq_length)
    sizes = [(style.size(document), document) for document in documents]
    for size, document in sorted(sizes, key=lambda item: -item[0]):
        row = len(groups) if size > seq_length else free.first(size)
        if row == len(groups):
            groups.append([])
        groups[row].append(document)
        free.take(row, size)
    return groups


class _FreeSlots:
    """Free slots of each row, as a tree of maxima: the first row with enough room is found in log(rows) steps."""

    def __init__(self, rows: int, room: int) -> None:
        self._leaves = 1 << max(rows - 1, 0).bit_length()
        self._most = [room] * (2 * self._leaves)  # node n has the children 2 n and 2 n + 1; rows are the last level

    def first(self, size: int) -> int:
        """The first row with at least `size` free slots, which may be the first empty one."""
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


_Item = TypeVar("_Item")


def dealt(items: Sequence[_Item], dp: int) -> list[_Item]:
    """What is dealt to replicas in turn, in the order in which the scheduler takes it: replica by replica."""
    return [item for replica in range(dp) for item in items[replica::dp]]


def undealt(items: Sequence[_Item], dp: int) -> list[_Item]:
    """The order from which `dealt` makes this one."""
    places = dealt(range(len(items)), dp)
    return [items[places.index(place)] for place in range(len(items))]


def row_of(document: Document, style: PackingStyle) -> Row:
    """A row of one document with its padding."""
    return Row(placed=(PlacedDocument(document=document, start=0, padded_length=style.size(document)),))


# Relative: Megatron-LM's schedulers pass sums on in float32, which holds every integer up to 2**24.
WORKLOAD_ROUNDING = 2.0**-24


@dataclass(frozen=True, kw_only=True)
class Workload:
    """The counts of one step. Lengths follow cu_seqlens_q, in tokens: real ones where padded ones are passed too."""

    micro_batches: int  # of one replica, whatever the number of model chunks
    tokens: float  # sum of lengths over all replicas
    squares: float  # sum of squared lengths over all replicas


def workload(step: Sequence[Sequence[MicroBatch]], dp: int) -> Workload:
    """The workload of replica `dp`; `step` is indexed [dp][micro-batch]."""
    return workloads(step)[dp]


def workloads(step: Sequence[Sequence[MicroBatch]]) -> list[Workload]:
    """The workload of every replica."""
    tokens, squares = map(sum, zip(*(summed_lengths(replica) for replica in step)))
    return [Workload(micro_batches=len(replica), tokens=tokens, squares=squares) for replica in step]


def summed_lengths(replica: Sequence[MicroBatch]) -> tuple[int, int]:
    """Sum of lengths and of squared lengths of one replica's micro-batches."""
    lengths = [length for batch in replica for length in _attended_lengths(batch)]
    return sum(lengths), sum(length**2 for length in lengths)


def _attended_lengths(batch: MicroBatch) -> list[int]:
    """Lengths of the sequences that attention sees: segments of packed rows, otherwise whole rows."""
    params = batch.params()
    if params is None:
        return [row.length for row in batch.rows]
    return [end - start for start, end in itertools.pairwise(params.cu_seqlens_q)]
