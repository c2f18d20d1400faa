"""Data paths of the harness itself, for controls."""

from __future__ import annotations

from harness.core.cell.layout import Layout
from harness.core.packing.options import PackingOptions
from harness.core.packing.packers import Packer, PackingStyle
from harness.upstreams.descriptor import LAYOUT, NONE, DataPath, one_document_per_row


def _reference_style(layout: Layout, seq_length: int, options: PackingOptions) -> PackingStyle:
    return PackingStyle(
        packed=True,
        document_multiple=options.pad_seq_to_mult or LAYOUT.multiple(layout),
        row_length=seq_length if options.pad_to_max_length else None,
        real_lengths=True,
        packer=Packer(row_multiple=options.pad_row_to_mult, tails=True, beyond=True)
        if options.pad_row_to_mult
        else Packer(),
    )


UNPACKED = DataPath(
    name="unpacked",
    adapter="harness.upstreams.builtin.node_unpacked:UnpackedPath",
    code="one document per row, by the harness",
    functions="none: one document per row, a control",
    releases="any megatron-core from 0.14",
    style=one_document_per_row,
    packs=False,
    own=True,
    alignment=NONE,
    trainers=("megatron",),
    hands_padding_mask=True,
    tokens_on_last_stage=True,
    predicts_by_stages=True,
    predicts_on_any_stage=True,
)
REFERENCE = DataPath(
    name="reference",
    adapter="harness.upstreams.builtin.node_reference:ReferencePath",
    code="packed by the harness; model and schedule by Megatron",
    functions="none: the harness's own packer, broadcast and context split, a control",
    releases="any megatron-core from 0.14",
    style=_reference_style,
    own=True,
    alignment=LAYOUT,
    options=("pad_seq_to_mult", "pad_to_max_length", "pad_row_to_mult"),
    counts_work=True,
    hands_padding_mask=True,
    tokens_on_last_stage=True,
    predicts_by_stages=True,
    predicts_on_any_stage=True,
    sets_pad_between_seqs=True,
)
