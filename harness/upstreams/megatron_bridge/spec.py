"""Data paths and trainer of Megatron-Bridge: offline packing, in-batch packing, and long rows without packing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from harness.core.cell.layout import Layout
from harness.core.packing.arithmetic import MicroBatch, PackMetadata, Row
from harness.core.packing.options import PackingOptions
from harness.core.packing.packers import Packer, PackingStyle, first_fit_decreasing, one_per_row
from harness.upstreams.descriptor import (
    GPT_KEYS,
    LAYOUT,
    NONE,
    ZIGZAG,
    DataPath,
    Limit,
    LimitedCell,
    Trainer,
    one_document_per_row,
    padding_is_fixed,
)

_RELEASES = "megatron-bridge wheels 0.4 to 0.6"
_ROW_MULTIPLE = 16  # pad_seq_length_to_mult of GPTSFTDataset


def _collated(blocks: Sequence[MicroBatch]) -> list[MicroBatch]:
    """Return the micro-batches of a replica, collated at once: all rows get tails that make them as long as the
    longest.
    """
    length = max(row.length for block in blocks for row in block.rows)
    even = [replace(block, rows=tuple(row.tailed_to(length) for row in block.rows)) for block in blocks]
    entries = max(len(block.segments) for block in even) + 1
    return [replace(block, entries=entries) for block in even]


def _metadata(rows: Sequence[Row]) -> PackMetadata:
    return PackMetadata(
        most_documents=max(len(row.placed) for row in rows),
        longest=max(item.padded_length for row in rows for item in row.placed),
        shortest_row=min(row.length - row.tail for row in rows),
    )


def _offline_style(layout: Layout, seq_length: int, options: PackingOptions) -> PackingStyle:
    """first_fit_decreasing and GPTSFTPackedDataset.collate_fn (0.4 .. 0.6).

    With a multiple of 1, upstream passes only physical offsets, otherwise real and physical ones. Rows that are
    collated together get as many offsets as the longest, by copies of the last one; releases before 0.6 cut them.
    """
    multiple = options.pad_seq_to_mult or ZIGZAG.multiple(layout)
    return PackingStyle(
        packed=True,
        document_multiple=multiple,
        row_length=seq_length if options.pad_to_max_length else None,
        pads_with_end=True,
        real_lengths=multiple > 1,
        last_repeats=not options.pad_cu_seqlens,
        longest_as_tensor=True,
        packer=Packer(
            fit=first_fit_decreasing,
            split=None,
            row_multiple=_ROW_MULTIPLE,
            tails=True,
            describe=_metadata if options.pad_cu_seqlens else None,
        ),
    )


def _collated_by_step(style: PackingStyle, layout: Layout) -> PackingStyle:
    """With dataloader_type "batch", upstream's default, collate_fn gets all rows of a replica's step at once (0.6)."""
    return replace(style, packer=replace(style.packer, row_by_row=True, collate=_collated))


def _as_long_as_the_longest(style: PackingStyle, layout: Layout) -> PackingStyle:
    """Collate a step's rows at once, as GPTSFTDataset.collate_fn with its default multiple of row lengths (0.6)."""
    packer = replace(style.packer, row_multiple=_ROW_MULTIPLE, tails=True, row_by_row=True, collate=_collated)
    return replace(style, row_length=None, pads_with_end=True, packer=packer)


def _in_batch_style(layout: Layout, seq_length: int, options: PackingOptions) -> PackingStyle:
    """data.packing.in_batch.build_mcore_thd_sequence_batch_from_rows (0.6).

    Real offsets accompany padded ones only if documents are padded. Up to 0.5, vlm_step passes padded ones alone; the
    result of attention is the same, since padding follows the tokens of its own segment.
    """
    return PackingStyle(
        packed=True,
        document_multiple=LAYOUT.multiple(layout),
        row_length=None,
        real_lengths=LAYOUT.multiple(layout) > 1,
        padded_only=True,
        longest_as_tensor=True,
        packer=Packer(fit=one_per_row),
    )


def _in_batch_images(style: PackingStyle) -> PackingStyle:
    """qwen2_5_collate_fn (0.6): all tokens of a document are in its row, and the last one has no label."""
    return replace(style, last_token_slots=1)


def _offline_row_alone(cell: LimitedCell) -> str | None:
    size = cell.micro_batch_size
    if size == 1:
        return None
    return f"micro_batch_size {size}: each row packed offline is one micro-batch; set micro_batch_size 1"


def _offline_rows_split(cell: LimitedCell) -> str | None:
    """Without pad_to_max_length rows end at a multiple; ranks need equal shares."""
    reason = None if cell.options.pad_to_max_length else _rows_split(cell)
    return f"{reason}; set pad_to_max_length" if reason else None


def _trained_rows_split(cell: LimitedCell) -> str | None:
    return _rows_split(cell) if cell.style.packer.tails else None


def _rows_split(cell: LimitedCell) -> str | None:
    needed = cell.layout.alignment
    if _ROW_MULTIPLE % needed == 0:
        return None
    return (
        f"rows end at a multiple of {_ROW_MULTIPLE} tokens, which the alignment {needed} of the layout does not "
        f"divide: {_ROW_MULTIPLE} % {needed} = {_ROW_MULTIPLE % needed}"
    )


def _in_batch_merges_rows(cell: LimitedCell) -> str | None:
    if cell.micro_batch_size > 1:
        return None
    return "micro_batch_size 1: in-batch packing merges the rows of a micro-batch; set micro_batch_size above 1"


OFFLINE = DataPath(
    name="bridge_offline",
    adapter="harness.upstreams.megatron_bridge.node_offline:BridgeOfflinePath",
    code="Megatron-Bridge packed SFT",
    functions="Megatron-Bridge offline packing: dataset builder, packed files, `gpt_step.forward_step`",
    releases=_RELEASES,
    style=_offline_style,
    alignment=ZIGZAG,
    options=("pad_seq_to_mult", "pad_to_max_length", "pad_cu_seqlens", "metadata"),
    limits=(
        Limit(
            "packing.offline-micro-batch",
            "Megatron-Bridge ConfigContainer.validate: offline packing requires micro_batch_size 1",
            _offline_row_alone,
        ),
        Limit(
            "packing.offline-rows-split",
            "Megatron-Bridge GPTSFTPackedDataset.collate_fn: pad_seq_length_to_mult 16",
            _offline_rows_split,
        ),
    ),
    trainers=("bridge",),
    trained=_collated_by_step,
    tokens_on_last_stage=True,
    canaries_without_effect={
        "padding": "upstream pads with the end-of-sentence id, which it also uses to separate documents",
        "truncation": "upstream is given documents that are already truncated",
    },
)
IN_BATCH = DataPath(
    name="bridge_in_batch",
    adapter="harness.upstreams.megatron_bridge.node_in_batch:BridgeInBatchPath",
    code="Megatron-Bridge in-batch packing",
    functions="Megatron-Bridge in-batch packing: `vlm_step.forward_step` up to 0.5, `prepare_sequence_batch` and "
    "`gpt_step.forward_step` in 0.6",
    releases=_RELEASES,
    style=_in_batch_style,
    with_images=_in_batch_images,
    alignment=LAYOUT,
    limits=(
        Limit(
            "packing.in-batch-alignment",
            "Megatron-Bridge ConfigContainer.validate: in_batch_packing_pad_to_multiple_of from TP, CP and SP",
            padding_is_fixed("in-batch packing pads documents to the alignment of the layout, and does not pad rows"),
        ),
        Limit(
            "packing.in-batch-micro-batch",
            "Megatron-Bridge ConfigContainer.validate: in-batch packing requires micro_batch_size above 1",
            _in_batch_merges_rows,
        ),
    ),
)
LONG = DataPath(
    name="bridge_long",
    adapter="harness.upstreams.megatron_bridge.node_long:BridgeLongPath",
    code="Megatron-Bridge long context",
    functions="Megatron-Bridge without packing: `gpt_step.forward_step`, split over context parallel ranks",
    releases=_RELEASES,
    style=one_document_per_row,
    packs=False,
    alignment=NONE,
    limits=(
        Limit(
            "packing.long-rows-split",
            "Megatron-Bridge GPTSFTDataset.collate_fn: pad_seq_length_to_mult 16",
            _trained_rows_split,
        ),
    ),
    trainers=("bridge",),
    trained=_as_long_as_the_longest,
    tokens_on_last_stage=True,
)


BRIDGE = Trainer(
    name="bridge",
    adapter="harness.upstreams.megatron_bridge.node_trainer:BridgeTrainer",
    project="megatron_bridge",
    model=(*GPT_KEYS, "peft"),
    arguments="fields",
    global_batch="TrainingConfig.global_batch_size",
    saves=True,
)
