"""Packing arithmetic: documents -> rows -> micro-batches -> what every rank must receive.

Pure integers, no tensors: the judge recomputes the truth from here, the probe builds its batches from
here, and property tests pin it. "Slot" is one token position of the physical (padded) stream.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

from harness.words.documents import Document
from harness.words.layout import Layout
from harness.words.packing_options import DEFAULT_OPTIONS, PackingOptions

PAD = -1  # document index of a padding slot


def align_up(value: int, multiple: int) -> int:
    """Smallest multiple of `multiple` that is >= value."""
    return -(-value // multiple) * multiple


@dataclass(frozen=True, kw_only=True)
class PackingStyle:
    """How a data path lays documents into rows."""

    packed: bool
    document_multiple: int  # every document is padded to a multiple of this many tokens
    last_token_slots: int = 0  # 1: a document's last token, which has no label of its own, takes a slot too
    row_length: int | None  # fixed physical row length, the last document takes the tail; None: as long as needed
    real_lengths: bool  # metadata tells real lengths beside padded ones
    split_last: bool = False  # how more rows are made: `_split_last`; else `_split_widest`

    def size(self, document: Document) -> int:
        """Slots of a document with its padding, unless it also takes the tail of its row."""
        return align_up(document.length + self.last_token_slots, self.document_multiple)


def packing_style(
    data_path: str, layout: Layout, seq_length: int, options: PackingOptions = DEFAULT_OPTIONS
) -> PackingStyle:
    """The layout rules of each data path.

    `sft` follows megatron.training.datasets.sft_dataset.SFTDataset.__getitem__ (0.17 .. 0.19): all length + 1 tokens
    of a document are in the row, and the last one's label, the next document's first target, is masked out; documents
    are padded to 2 * cp only when cp > 1, rows always to seq_length, and the last segment takes the tail. `skyrl`
    follows preprocess_packed_seqs: documents padded to 2 * cp * tp, or to tp when cp is 1, with or without sp.
    `scheduler` follows DpBalancedScheduler, which is given documents that are padded already, as for the reference.
    Packing options do not touch `unpacked`.
    """
    asked = options.pad_seq_to_mult
    if data_path == "unpacked":
        return PackingStyle(packed=False, document_multiple=1, row_length=seq_length, real_lengths=False)
    if data_path == "reference":
        row_length = seq_length if options.pad_to_max_length else None
        multiple = asked or layout.alignment
        return PackingStyle(packed=True, document_multiple=multiple, row_length=row_length, real_lengths=True)
    if data_path == "sft":
        multiple = asked or (2 * layout.cp if layout.cp > 1 else 1)
        return PackingStyle(
            packed=True, document_multiple=multiple, last_token_slots=1, row_length=seq_length, real_lengths=False
        )
    if data_path == "scheduler":
        multiple = asked or layout.alignment
        return PackingStyle(
            packed=True, document_multiple=multiple, row_length=None, real_lengths=False, split_last=True
        )
    if data_path == "skyrl":
        multiple = layout.tp * (2 * layout.cp if layout.cp > 1 else 1)
        return PackingStyle(packed=True, document_multiple=multiple, row_length=None, real_lengths=False)
    raise ValueError(f"unknown data path {data_path!r}")


@dataclass(frozen=True, kw_only=True)
class PlacedDocument:
    """A document at its place in a row: slots start .. start + padded_length, real tokens first."""

    document: Document
    start: int
    padded_length: int


@dataclass(frozen=True, kw_only=True)
class Row:
    """One row of the batch dimension before rows of a micro-batch are merged."""

    placed: tuple[PlacedDocument, ...]

    @property
    def length(self) -> int:
        """Physical length in slots."""
        last = self.placed[-1]
        return last.start + last.padded_length


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
class MicroBatch:
    """Rows that go through the model together; packed rows are merged into one stream of shape (1, slots)."""

    rows: tuple[Row, ...]
    style: PackingStyle

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

    @property
    def slots(self) -> int:
        return sum(row.length for row in self.rows)

    @property
    def real_tokens(self) -> int:
        return sum(item.document.length for item in self.placed)

    @property
    def loss_tokens(self) -> int:
        """Labels that count in the loss."""
        return sum(item.document.length for item in self.placed if not item.document.masked)

    def params(self) -> PackedParams | None:
        """The metadata truth; None for unpacked rows."""
        if not self.style.packed:
            return None
        real, padded = [0], [0]
        for item in self.placed:
            real.append(real[-1] + item.document.length)
            padded.append(padded[-1] + item.padded_length)
        longest = max(item.padded_length for item in self.placed)
        outer = tuple(padded)
        inner = tuple(real) if self.style.real_lengths else outer
        beside = outer if self.style.real_lengths else None
        return PackedParams(
            cu_seqlens_q=inner,
            cu_seqlens_kv=inner,
            cu_seqlens_q_padded=beside,
            cu_seqlens_kv_padded=beside,
            max_seqlen_q=longest,
            max_seqlen_kv=longest,
        )

    def slot_owners(self) -> list[tuple[int, int]]:
        """(document index or PAD, position within the segment) of every slot of the merged stream."""
        owners = []
        for item in self.placed:
            for position in range(item.padded_length):
                owners.append((item.document.index if position < item.document.length else PAD, position))
        return owners

    def local_slots(self, cp: int, cp_rank: int) -> list[list[int]]:
        """Stream slots that a context-parallel rank holds, in its order: one list per row of the batch dimension.

        Packed: one merged row, zigzag per document. Unpacked: one list per row, zigzag over the whole row.
        """
        if self.style.packed:
            bounds = [item.start for item in self.placed] + [self.slots]
            return [zigzag(bounds, cp, cp_rank)]
        length = self.rows[0].length
        return [zigzag([index * length, (index + 1) * length], cp, cp_rank) for index in range(len(self.rows))]


def zigzag(bounds: Sequence[int], cp: int, cp_rank: int) -> list[int]:
    """Slots of one context-parallel rank when every segment is cut in 2 * cp chunks.

    Rank r takes chunk r, then chunk 2 * cp - 1 - r, segments in order: the meaning of
    transformer_engine_torch.thd_get_partitioned_indices for aligned segments.
    ValueError when a segment does not divide.
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
    """Rows of at most seq_length slots holding the documents in order (next fit).

    The number of rows is made a multiple of `multiple` by splitting rows. ValueError if there are too few documents
    for that.
    """
    groups: list[list[Document]] = []
    used = 0
    for document in documents:
        size = style.size(document)
        if groups and style.packed and used + size <= seq_length:
            groups[-1].append(document)
            used += size
        else:
            groups.append([document])
            used = size
    made = len(groups)
    while len(groups) % multiple:
        if not (_split_last(groups, made) if style.split_last else _split_widest(groups)):
            raise ValueError(
                f"{len(documents)} documents make {len(groups)} rows of {seq_length} tokens, which cannot be split "
                f"into a multiple of {multiple} (dp x micro_batch_size, and pp when interleaved)"
            )
    return [_place(group, style) for group in groups]


def _split_widest(groups: list[list[Document]]) -> bool:
    """Halve the row with most documents; False when every row has only one."""
    widest = max(range(len(groups)), key=lambda index: len(groups[index]))
    half = len(groups[widest]) // 2
    if half:
        groups[widest : widest + 1] = [groups[widest][:half], groups[widest][half:]]
    return half > 0


def _split_last(groups: list[list[Document]], made: int) -> bool:
    """Give the last document of the last row that has several a row of its own at the end; never of the first row.

    Of the first `made` rows only; megatron.core.datasets.data_schedule.DpBalancedScheduler.get_groups_and_subsamples.
    """
    last = next((index for index in range(made - 1, 0, -1) if len(groups[index]) > 1), None)
    if last is not None:
        groups.append([groups[last].pop()])
    return last is not None


def _place(documents: Sequence[Document], style: PackingStyle) -> Row:
    placed = []
    start = 0
    for index, document in enumerate(documents):
        size = style.size(document)
        if style.row_length is not None and index == len(documents) - 1:
            size = style.row_length - start
        placed.append(PlacedDocument(document=document, start=start, padded_length=size))
        start += size
    return Row(placed=tuple(placed))


def row_multiple(layout: Layout, micro_batch_size: int) -> int:
    """The number of rows of a step must be a multiple of this; interleaving wants micro-batches in pp groups."""
    return layout.dp * micro_batch_size * (layout.pp if layout.vpp > 1 else 1)


def plan_step(
    documents: Sequence[Document], style: PackingStyle, layout: Layout, *, seq_length: int, micro_batch_size: int
) -> list[list[MicroBatch]]:
    """Micro-batches of one step, indexed [dp][i]; rows go round the replicas in blocks of micro_batch_size."""
    rows = pack(documents, style, seq_length=seq_length, multiple=row_multiple(layout, micro_batch_size))
    blocks = [
        MicroBatch(rows=tuple(rows[start : start + micro_batch_size]), style=style)
        for start in range(0, len(rows), micro_batch_size)
    ]
    return [blocks[dp :: layout.dp] for dp in range(layout.dp)]
