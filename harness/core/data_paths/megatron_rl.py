"""The data path of Megatron-LM's own training script for reinforcement learning."""

from __future__ import annotations

from harness.core.cell.layout import Layout
from harness.core.data_paths.descriptor import ZIGZAG, DataPath, Limit, LimitedCell, padding_is_fixed
from harness.core.packing.options import PackingOptions
from harness.core.packing.styles import PackingStyle

MOST_ROLLOUTS = 50  # in a bin: the default of --rl-sequence-packing-max-sequences-per-bin


def _style(layout: Layout, seq_length: int, options: PackingOptions) -> PackingStyle:
    """SequencePacker.pack_sequences, create_packed_seq_params_for_bin."""
    return PackingStyle(
        packed=True,
        document_multiple=ZIGZAG.multiple(layout),
        last_token_slots=1,
        row_length=seq_length,
        real_lengths=layout.cp > 1,
        descending=True,
        most_documents=MOST_ROLLOUTS,
        even_shares=True,
        tail_segment=True,
        tail_is_real=True,
        longest_is_row=True,
    )


def _one_bin(cell: LimitedCell) -> str | None:
    rows = cell.micro_batch_size
    return f"micro_batch_size is {rows}, and a micro-batch is one bin" if rows > 1 else None


MEGATRON_RL = DataPath(
    name="megatron_rl",
    code="Megatron-LM RL",
    functions="Megatron-LM `pack_all_trajectories`, and `forward_step` of `train_rl.py` with `get_logprobs`, "
    "`calculate_grpo_loss` and `loss_func`",
    releases="checkouts of Megatron-LM",
    style=_style,
    alignment=ZIGZAG,
    limits=(
        Limit(
            "packing.megatron-rl-alignment",
            "Megatron-LM pack_all_trajectories: seq_length_multiple from cp only",
            padding_is_fixed("megatron_rl pads rollouts to 2 * cp when cp > 1"),
        ),
        Limit("packing.megatron-rl-bins", "Megatron-LM validate_args: rl_use_sequence_packing", _one_bin),
    ),
    without=("labels", "loss_mask"),
    returns_log_probs=True,
    loss_on_every_context_rank=True,
    sets_pad_between_seqs=True,
)
