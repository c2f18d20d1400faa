"""The data path of verl's Megatron engine."""

from __future__ import annotations

from harness.core.cell.layout import Layout
from harness.core.packing.options import PackingOptions
from harness.core.packing.packers import Packer, PackingStyle
from harness.upstreams.descriptor import ZIGZAG, Alignment, DataPath, Limit, padding_is_fixed


def _text(layout: Layout) -> str:
    tp, cp = layout.tp, layout.cp
    return f"2 * cp * tp = 2 * {cp} * {tp}" if cp > 1 else "tp"


_ALIGNMENT = Alignment(lambda layout: layout.tp * ZIGZAG.multiple(layout), _text)  # the same with and without sp


def _style(layout: Layout, seq_length: int, options: PackingOptions) -> PackingStyle:
    """preprocess_thd_engine, and preprocess_thd_no_padding before it, which does not pad rows.

    The last document takes the padding of its row.
    """
    bucket = options.pad_row_to_mult
    return PackingStyle(
        packed=True,
        document_multiple=_ALIGNMENT.multiple(layout),
        last_token_slots=1,
        row_length=None,
        real_lengths=False,
        packer=Packer(row_multiple=bucket, beyond=True) if bucket else Packer(),
    )


VERL = DataPath(
    name="verl",
    code="verl Megatron engine",
    functions="verl `preprocess_thd_engine` and its inverse, `vocab_parallel_log_probs_from_logits`, `sft_loss`",
    releases="verl wheels from 0.7, and checkouts",
    style=_style,
    alignment=_ALIGNMENT,
    options=("pad_row_to_mult",),
    limits=(
        Limit(
            "packing.verl-alignment",
            "verl preprocess_thd_engine: align_size from TP and CP only, rows to a multiple only",
            padding_is_fixed(
                "verl pads documents to tp, or to 2 * cp * tp when cp > 1; its rows can have pad_row_to_mult"
            ),
        ),
    ),
    without=("position_ids", "labels", "loss_mask"),
    canaries_without_effect={"padding": "upstream gets documents without padding, and pads with zeros"},
    step_mean=True,
    counted="tokens",
    returns_log_probs=True,
)
