"""Data path and trainer of SkyRL's Megatron backend."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from harness.core.cell.layout import Layout
from harness.core.packing.arithmetic import MicroBatch
from harness.core.packing.options import PackingOptions
from harness.core.packing.packers import Packer, PackingStyle, one_per_row
from harness.core.packing.sharing import Bins, decreasing, first_fit, in_turn, multiplied
from harness.upstreams.descriptor import ZIGZAG, Alignment, DataPath, Limit, LimitedCell, Trainer, padding_is_fixed


def _text(layout: Layout) -> str:
    tp, cp = layout.tp, layout.cp
    return f"2 * cp * tp = 2 * {cp} * {tp}" if cp > 1 else "tp"


# The same with and without sp.
_ALIGNMENT = Alignment(lambda layout: layout.tp * ZIGZAG.multiple(layout), _text)


def _as_long_as_the_longest(blocks: Sequence[MicroBatch]) -> list[MicroBatch]:
    """Return the rows of each micro-batch, all as long as its longest."""
    return [
        replace(block, rows=tuple(row.stretched_to(max(other.length for other in block.rows)) for row in block.rows))
        for block in blocks
    ]


@dataclass(frozen=True, kw_only=True)
class FirstFitDecreasing:
    """PackedDataCollator: bins of unpadded documents, which replicas take in turn."""

    capacity: int
    replicas: int

    def __call__(self, sizes: Sequence[int]) -> list[Bins]:
        bins = first_fit(decreasing(sizes), sizes, self.capacity)
        return in_turn(multiplied(bins, self.replicas), self.replicas)


def _style(layout: Layout, seq_length: int, options: PackingOptions) -> PackingStyle:
    """preprocess_packed_seqs, or without packing remove_left_padding, which pads rows to a micro-batch's longest."""
    packed = options.remove_microbatch_padding
    if options.use_sequence_packing:
        share = FirstFitDecreasing(capacity=options.max_tokens_per_microbatch or seq_length, replicas=layout.dp)
        packer = Packer(split=None, share=share)
    else:
        packer = Packer() if packed else Packer(collate=_as_long_as_the_longest)
    return PackingStyle(
        packed=packed,
        document_multiple=_ALIGNMENT.multiple(layout),
        row_length=None,
        real_lengths=False,
        packer=packer,
    )


def _by_worker(style: PackingStyle, layout: Layout) -> PackingStyle:
    """As SkyRL's worker trains: documents have the token that only their last label needs; without controller, a row
    each.
    """
    return replace(style, packer=replace(style.packer, fit=one_per_row), last_token_slots=1)


def _packs_for_cp(cell: LimitedCell) -> str | None:
    cp = cell.layout.cp
    if cp == 1 or cell.options.remove_microbatch_padding:
        return None
    return (
        f"cp {cp} and remove_microbatch_padding is false: SkyRL splits documents over context parallel ranks only "
        "if it packs them; set remove_microbatch_padding or cp 1"
    )


SKYRL = DataPath(
    name="skyrl",
    adapter="harness.upstreams.skyrl.node_data_path:SkyrlPath",
    code="SkyRL Megatron backend",
    functions="SkyRL `preprocess_packed_seqs` and its inverse; without packing `remove_left_padding`",
    releases="skyrl and skyrl-train wheels",
    style=_style,
    alignment=_ALIGNMENT,
    options=("remove_microbatch_padding", "use_sequence_packing", "max_tokens_per_microbatch"),
    limits=(
        Limit(
            "packing.skyrl-alignment",
            "SkyRL preprocess_packed_seqs: align_size from TP and CP only",
            padding_is_fixed("skyrl pads documents to tp, or to 2 * cp * tp when cp > 1, and does not pad rows"),
        ),
        Limit(
            "packing.skyrl-cp",
            "SkyRL validate_megatron_cfg and remove_left_padding: context parallel is only supported with packing",
            _packs_for_cp,
        ),
    ),
    trainers=("skyrl",),
    trained=_by_worker,
    trained_without=("position_ids",),
    returns_log_probs=True,
)


SKYRL_TRAINER = Trainer(name="skyrl", adapter="harness.upstreams.skyrl.node_trainer:SkyrlTrainer", project="skyrl")
