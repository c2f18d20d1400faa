"""The data path of NeMo-RL's Megatron policy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from harness.core.cell.layout import Layout
from harness.core.packing.arithmetic import MicroBatch
from harness.core.packing.options import PackingOptions
from harness.core.packing.packers import Packer, PackingStyle
from harness.upstreams.descriptor import ZIGZAG, Alignment, DataPath, Limit, LimitedCell
from harness.upstreams.nemo_rl.packing import ShardByBatchSize


def _text(layout: Layout) -> str:
    zigzag = ZIGZAG.text(layout) if layout.cp > 1 else "1"
    return f"{zigzag}, times tp = {layout.tp} with sp"


# The least `make_sequence_length_divisible_by`; _get_pack_sequence_parameters_for_megatron accepts its multiples.
_ALIGNMENT = Alignment(lambda layout: ZIGZAG.multiple(layout) * (layout.tp if layout.sp else 1), _text)


def _of_one_length(blocks: Sequence[MicroBatch]) -> list[MicroBatch]:
    """Return the micro-batches of a replica, as long as the longest: their last documents take the rest."""
    longest = max(block.slots for block in blocks)
    return [_stretched(block, longest - block.slots) for block in blocks]


def _stretched(block: MicroBatch, more: int) -> MicroBatch:
    *rows, last = block.rows
    return replace(block, rows=(*rows, last.stretched_to(last.length + more)))


def _by_algorithm(layout: Layout, seq_length: int, options: PackingOptions) -> Packer:
    share = ShardByBatchSize(
        algorithm=options.packing_algorithm,
        capacity=options.max_tokens_per_microbatch or seq_length,
        replicas=layout.dp,
    )
    return Packer(split=None, share=share, shares_padded=True, even_shares=True)


def _style(layout: Layout, seq_length: int, options: PackingOptions) -> PackingStyle:
    """_pack_sequences_for_megatron: with pipeline stages, which exchange tensors of one shape, packs get one length."""
    packer = Packer() if options.packing_algorithm == "planned" else _by_algorithm(layout, seq_length, options)
    return PackingStyle(
        packed=True,
        document_multiple=options.pad_seq_to_mult or _ALIGNMENT.multiple(layout),
        last_token_slots=1,
        row_length=None,
        real_lengths=False,
        packer=replace(packer, collate=_of_one_length) if layout.pp > 1 else packer,
    )


def _rows_not_of_seq_length(cell: LimitedCell) -> str | None:
    if not cell.options.pad_to_max_length:
        return None
    return "pad_to_max_length is true, and NeMo-RL pads no row to seq_length: with pp above 1 all to the longest one"


NEMO_RL = DataPath(
    name="nemo_rl",
    adapter="harness.upstreams.nemo_rl.node_data_path:NemoRlPath",
    code="NeMo-RL Megatron policy",
    functions="NeMo-RL `get_microbatch_iterator`, `LogprobsPostProcessor` and `LossPostProcessor` with `NLLLossFn`",
    releases="checkouts of NeMo-RL",
    style=_style,
    alignment=_ALIGNMENT,
    options=("pad_seq_to_mult", "packing_algorithm", "max_tokens_per_microbatch", "fuse_loss"),
    limits=(
        Limit(
            "packing.nemo-rl-rows",
            "NeMo-RL _get_pack_sequence_parameters_for_megatron: with stages all rows as long as the longest",
            _rows_not_of_seq_length,
        ),
    ),
    without=("position_ids", "labels", "loss_mask"),
    counted="",
    returns_log_probs=True,
)
