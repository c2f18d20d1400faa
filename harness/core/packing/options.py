"""What a cell sets of packing and of the loss, and the style in which its data path packs documents into rows."""

from __future__ import annotations

from dataclasses import dataclass, replace

from harness.core.packing.documents import Document
from harness.core.setting import setting


@dataclass(frozen=True, kw_only=True)
class PackingOptions:
    """Options of packing and of the loss; the rules say which of them a layout allows.

    Names and meanings are Megatron-Bridge's, those of the loss switches Megatron-LM's; `remove_microbatch_padding` is
    SkyRL's, `fuse_loss` NeMo-RL's. A rule rejects what the probe does not implement (matrix/rules).
    """

    pad_seq_to_mult: int | None = setting(
        None,
        doc="Pad each document to a multiple of this many tokens; auto: what the data path derives.",
        ge=1,
        le=2**20,
        auto=True,
        label="pad{}",
    )
    pad_to_max_length: bool = setting(False, doc="Every packed row has seq_length slots.", label="padmax")
    pad_cu_seqlens: bool = setting(False, doc="cu_seqlens has a fixed number of entries.", label="padcu")
    metadata: bool = setting(False, doc="A metadata file accompanies the packed documents.", label="meta")
    remove_microbatch_padding: bool = setting(
        True,
        doc="`skyrl` packs the documents of a micro-batch; false: one padded row per document.",
        aliases=("use_sample_packing",),
        label="nopack",
    )
    fuse_loss: bool = setting(
        False, doc="`nemo_rl` computes the loss of a pack at once, not document by document.", label="fused", later=True
    )
    calculate_per_token_loss: bool = setting(
        True,
        doc="Sum the loss over tokens, divide once by all tokens.",
        upstream="calculate_per_token_loss",
        label="meanloss",
    )
    average_in_collective: bool = setting(False, doc="Average gradients inside the collective.", label="avgcoll")


DEFAULT_OPTIONS = PackingOptions()


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
