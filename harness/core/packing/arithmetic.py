"""Packing arithmetic: rows -> micro-batches -> what every rank must receive. Packers make the rows (packers.py).

Integers, no tensors: the judge computes the expected values with these functions, the probe builds its batches with
them, and property tests cover them. A slot is one token position of the physical (padded) stream.

Megatron-LM's samplers deal to replicas, and its packing scheduler deals again. Data paths count the work of a step for
FLOPs: micro-batches, sum of lengths, sum of squared lengths.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TypeVar

from harness.core.packing.documents import Document

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

    def stretched_to(self, length: int) -> Row:
        """Return the row with `length` slots; its last document takes the rest."""
        *placed, last = self.placed
        return replace(self, placed=(*placed, replace(last, padded_length=length - self.tail - last.start)))

    def tailed_to(self, length: int) -> Row:
        """Return the row with `length` slots; the rest is its tail."""
        return replace(self, tail=self.tail + length - self.length)


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


# Slots of a context-parallel rank, in its order, of a stream whose segments have these bounds: (bounds, cp, cp_rank).
# All ranks together hold each slot once, and equally many.
Split = Callable[[Sequence[int], int, int], list[int]]


def zigzag(bounds: Sequence[int], cp: int, cp_rank: int) -> list[int]:
    """Return slots of one context-parallel rank when every segment is cut into 2 * cp chunks.

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


def contiguous(bounds: Sequence[int], cp: int, cp_rank: int) -> list[int]:
    """Slots of one context-parallel rank when the stream is cut into cp equal parts, wherever its segments end.

    ValueError if the length of the stream is not a multiple of cp.
    """
    share, rest = divmod(bounds[-1] - bounds[0], cp)
    if rest:
        raise ValueError(f"the stream has {bounds[-1] - bounds[0]} slots, not a multiple of cp = {cp}")
    return list(range(bounds[0] + cp_rank * share, bounds[0] + (cp_rank + 1) * share))


@dataclass(frozen=True, kw_only=True)
class MetadataStyle:
    """What a data path passes to attention, and which of it may differ between releases."""

    packed: bool
    last_token_slots: int = 0  # 1: a document's last token, which has no label, takes a slot too
    real_lengths: bool  # metadata has real lengths in addition to padded ones
    offsets_twice: bool = False  # without real_lengths: the padded offsets are passed as real ones too
    padded_only: bool = False  # with real_lengths: some releases pass padded offsets only, on all ranks
    tail_is_real: bool = False  # with real_lengths: the slots of a row's tail count as tokens
    last_repeats: bool = False  # releases differ in how often they repeat the last offset: attention reads no more
    longest_is_row: bool = False  # max_seqlen is the length of the row
    longest_as_tensor: bool = False  # max_seqlen may also be a tensor of one element
    split: Split = zigzag  # of a micro-batch's packed stream, or of each of its rows, over context ranks


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
    style: MetadataStyle
    metadata: PackMetadata | None = None  # of the step, where the packer describes it
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
        """Return the expected metadata; None for unpacked rows."""
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
        repeated = self.entries - len(padded)
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

        Packed: one merged row, split by its documents. Unpacked: one list per row, split as one segment.
        """
        if self.style.packed:
            lengths = (padded_length for _, padded_length in self.segments)
            return [self.style.split([0, *itertools.accumulate(lengths)], cp, cp_rank)]
        length = self.rows[0].length
        return [
            self.style.split([index * length, (index + 1) * length], cp, cp_rank) for index in range(len(self.rows))
        ]


_Item = TypeVar("_Item")


def dealt(items: Sequence[_Item], dp: int) -> list[_Item]:
    """Return what is dealt to replicas in turn, in the order in which the scheduler takes it: replica by replica."""
    return [item for replica in range(dp) for item in items[replica::dp]]


def undealt(items: Sequence[_Item], dp: int) -> list[_Item]:
    """Return the order from which `dealt` makes this one."""
    places = dealt(range(len(items)), dp)
    return [items[places.index(place)] for place in range(len(items))]


# Relative: Megatron-LM's schedulers pass sums on in float32, which holds every integer up to 2**24.
WORKLOAD_ROUNDING = 2.0**-24


@dataclass(frozen=True, kw_only=True)
class Workload:
    """The counts of one step. Lengths follow cu_seqlens_q, in tokens: real ones where padded ones are passed too."""

    micro_batches: int  # of one replica, whatever the number of model chunks
    tokens: float  # sum of lengths over all replicas
    squares: float  # sum of squared lengths over all replicas


def workload(step: Sequence[Sequence[MicroBatch]], dp: int) -> Workload:
    """Return the workload of replica `dp`; `step` is indexed [dp][micro-batch]."""
    return workloads(step)[dp]


def workloads(step: Sequence[Sequence[MicroBatch]]) -> list[Workload]:
    """Return the workload of every replica."""
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
