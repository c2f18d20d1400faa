"""The data path of verl's Megatron engine."""

from __future__ import annotations

from dataclasses import replace

from harness.core.cell.layout import Layout
from harness.core.packing.options import PackingOptions
from harness.core.packing.packers import Packer, PackingStyle
from harness.upstreams.descriptor import ZIGZAG, Alignment, DataPath, Limit, LimitedCell, padding_is_fixed
from harness.upstreams.verl.packing import DynamicBatches


def _text(layout: Layout) -> str:
    tp, cp = layout.tp, layout.cp
    return f"2 * cp * tp = 2 * {cp} * {tp}" if cp > 1 else "tp"


_ALIGNMENT = Alignment(lambda layout: layout.tp * ZIGZAG.multiple(layout), _text)  # the same with and without sp


def _style(layout: Layout, seq_length: int, options: PackingOptions) -> PackingStyle:
    """preprocess_thd_engine, and preprocess_thd_no_padding before it, which does not pad rows.

    The last document takes the padding of its row.
    """
    bucket = options.pad_row_to_mult
    padded = Packer(row_multiple=bucket, beyond=True) if bucket else Packer()
    return PackingStyle(
        packed=True,
        document_multiple=_ALIGNMENT.multiple(layout),
        last_token_slots=1,
        row_length=None,
        real_lengths=False,
        packer=_dynamic(padded, layout, seq_length, options) if options.use_dynamic_bsz else padded,
    )


def _dynamic(packer: Packer, layout: Layout, seq_length: int, options: PackingOptions) -> Packer:
    share = DynamicBatches(
        capacity=(options.max_tokens_per_microbatch or seq_length) * layout.cp,
        replicas=layout.dp,
        multiple=layout.pp if layout.vpp > 1 else 1,
        balance=options.balance_batch,
    )
    return replace(packer, split=None, share=share, even_shares=True)


def _balances_dynamic_batches(cell: LimitedCell) -> str | None:
    if not cell.options.balance_batch or cell.options.use_dynamic_bsz:
        return None
    return "balance_batch is true and use_dynamic_bsz is false: the harness deals the rows that it has planned"


VERL = DataPath(
    name="verl",
    adapter="harness.upstreams.verl.node_data_path:VerlPath",
    code="verl Megatron engine",
    functions="verl `preprocess_thd_engine` and its inverse, `vocab_parallel_log_probs_from_logits`, `sft_loss`",
    releases="verl wheels from 0.7, and checkouts",
    style=_style,
    alignment=_ALIGNMENT,
    options=("pad_row_to_mult", "max_tokens_per_microbatch", "use_dynamic_bsz", "balance_batch"),
    limits=(
        Limit(
            "packing.verl-alignment",
            "verl preprocess_thd_engine: align_size from TP and CP only, rows to a multiple only",
            padding_is_fixed(
                "verl pads documents to tp, or to 2 * cp * tp when cp > 1; its rows can have pad_row_to_mult"
            ),
        ),
        Limit("packing.verl-balance", "harness: the adapter of verl", _balances_dynamic_batches),
    ),
    without=("position_ids", "labels", "loss_mask"),
    canaries_without_effect={"padding": "upstream gets documents without padding, and pads with zeros"},
    step_mean=True,
    counted="tokens",
    returns_log_probs=True,
)
