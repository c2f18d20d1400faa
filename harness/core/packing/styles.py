"""The ways in which data paths pack documents into rows."""

from __future__ import annotations

from dataclasses import dataclass, replace

from harness.core.packing.documents import Document


def align_up(value: int, multiple: int) -> int:
    """Smallest multiple of `multiple` that is >= value."""
    return -(-value // multiple) * multiple


@dataclass(frozen=True, kw_only=True)
class PackingStyle:
    """How a data path packs documents into rows."""

    packed: bool
    document_multiple: int  # every document is padded to a multiple of this many tokens
    last_token_slots: int = 0  # 1: a document's last token, which has no label, takes a slot too
    row_length: int | None  # fixed row length in slots, the last document takes the tail; None: as long as needed
    real_lengths: bool  # metadata has real lengths in addition to padded ones
    offsets_twice: bool = False  # without real_lengths: the padded offsets are passed as real ones too
    padded_only: bool = False  # with real_lengths: some releases pass padded offsets only, on all ranks
    one_per_row: bool = False  # one document per row; the rows of a micro-batch are merged
    even_rows: bool = False  # not packed: rows are as long as the longest of their micro-batch
    split_last: bool = False  # how rows are split: see arithmetic.pack
    split_first: bool = False  # with split_last: also the first row
    longest_first: bool = False  # first-fit decreasing; otherwise next fit, in order
    descending: bool = False  # next fit, from the longest document to the shortest
    most_documents: int | None = None  # in a row; offsets have two entries more, the last one repeated
    even_shares: bool = False  # replicas contribute equal numbers of documents
    tail_segment: bool = False  # the slots after a row's last document form a segment without a document
    tail_is_real: bool = False  # with tail_segment and real_lengths: its slots count as tokens
    tail_multiple: int = 1  # with tail_segment: rows are padded to a multiple of this, at most seq_length
    fixed_entries: bool = False  # the offsets of all rows of a step have the same number of entries
    last_repeats: bool = False  # releases differ in how often they repeat the last offset: attention reads no more
    even_step: bool = False  # replicas take rows one at a time; all of a replica's step have one length and offsets
    even_last: bool = False  # all micro-batches of a replica's step have one length: their last documents take the rest
    longest_is_row: bool = False  # max_seqlen is the length of the row
    longest_as_tensor: bool = False  # max_seqlen may also be a tensor of one element

    @property
    def splits(self) -> bool:
        """Whether rows may be split, to have a multiple of the layout's."""
        return not (self.longest_first or self.descending)

    def size(self, document: Document) -> int:
        """Slots of a document with its padding, not counting a row's tail."""
        return align_up(document.length + self.last_token_slots, self.document_multiple)


def packed_of_documents(style: PackingStyle) -> PackingStyle:
    """The style of Megatron-LM's DpBalancedScheduler for documents that it gets one by one, not in rows."""
    return replace(style, row_length=None, split_last=True, split_first=True)
