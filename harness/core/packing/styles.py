"""How each data path lays documents into rows."""

from __future__ import annotations

from dataclasses import dataclass

from harness.core.cell.layout import Layout
from harness.core.packing.documents import Document
from harness.core.packing.options import DEFAULT_OPTIONS, PackingOptions

UNPACKED = ("unpacked", "bridge_long", "rules")  # data paths that lay one document into each row


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
    padded_alone: bool = False  # with real_lengths: a release may also tell padded offsets alone, on all ranks
    one_per_row: bool = False  # every document has a row of its own; the rows of a micro-batch are merged
    even_rows: bool = False  # not packed: rows are as long as the longest of their micro-batch
    split_last: bool = False  # how more rows are made: see packing.pack
    longest_first: bool = False  # documents go, longest first, into the first row with room; else in order, next fit
    tail_segment: bool = False  # slots that fill a row up are a segment of their own, without a document
    tail_multiple: int = 1  # with tail_segment: rows are filled up to a multiple of this, at most seq_length
    fixed_entries: bool = False  # the offsets of all rows of a step have the same number of entries
    longest_as_tensor: bool = False  # max_seqlen may also be a tensor of one element

    def size(self, document: Document) -> int:
        """Slots of a document with its padding, unless it also takes the tail of its row."""
        return align_up(document.length + self.last_token_slots, self.document_multiple)


def packing_style(
    data_path: str, layout: Layout, seq_length: int, options: PackingOptions = DEFAULT_OPTIONS
) -> PackingStyle:
    """The layout rules of each data path.

    `sft` follows megatron.training.datasets.sft_dataset.SFTDataset.__getitem__ (0.17 .. 0.19): all length + 1 tokens
    of a document are in the row, and the last one's label, the next document's first target, is masked out; documents
    are padded to 2 * cp only when cp > 1, rows always to seq_length, and the last segment takes the tail.
    `scheduler` follows DpBalancedScheduler, which is given documents that are padded already, as for the reference.
    Packing options do not touch `unpacked`.
    """
    asked = options.pad_seq_to_mult
    if data_path in UNPACKED:
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
    if data_path == "bridge_offline":
        return _bridge_offline(layout, seq_length, options)
    if data_path == "bridge_in_batch":
        return _bridge_in_batch(layout)
    if data_path == "skyrl":
        return _skyrl(layout, options)
    raise ValueError(f"unknown data path {data_path!r}")


def _bridge_offline(layout: Layout, seq_length: int, options: PackingOptions) -> PackingStyle:
    """Megatron-Bridge offline packing: first_fit_decreasing and GPTSFTPackedDataset.collate_fn (0.4 .. 0.6).

    A multiple of 1 tells physical offsets only, any other real and physical ones. 16 is the dataset's own default of
    what rows are padded to.
    """
    multiple = options.pad_seq_to_mult or (2 * layout.cp if layout.cp > 1 else 1)
    return PackingStyle(
        packed=True,
        document_multiple=multiple,
        row_length=seq_length if options.pad_to_max_length else None,
        real_lengths=multiple > 1,
        longest_first=True,
        tail_segment=True,
        tail_multiple=16,
        fixed_entries=options.pad_cu_seqlens,
        longest_as_tensor=True,
    )


def _bridge_in_batch(layout: Layout) -> PackingStyle:
    """Megatron-Bridge in-batch packing: data.packing.in_batch.build_mcore_thd_sequence_batch_from_rows (0.6).

    Real offsets stand beside padded ones only where documents are padded. Up to 0.5 vlm_step tells padded ones alone,
    which attention reads alike: padding follows the tokens of its own segment.
    """
    return PackingStyle(
        packed=True,
        document_multiple=layout.alignment,
        row_length=None,
        real_lengths=layout.alignment > 1,
        padded_alone=True,
        one_per_row=True,
        longest_as_tensor=True,
    )


def _skyrl(layout: Layout, options: PackingOptions) -> PackingStyle:
    """SkyRL preprocess_packed_seqs: documents padded to 2 * cp * tp, or to tp when cp is 1, with or without sp.

    Without packing remove_left_padding: rows padded to the longest of their micro-batch, and that to tp.
    """
    packed = options.remove_microbatch_padding
    multiple = layout.tp * (2 * layout.cp if layout.cp > 1 else 1)
    return PackingStyle(
        packed=packed, document_multiple=multiple, row_length=None, real_lengths=False, even_rows=not packed
    )
