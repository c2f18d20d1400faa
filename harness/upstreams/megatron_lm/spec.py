"""Trainer and data paths of Megatron-LM: `--sft`, the THD scheduler, its script for reinforcement learning."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from harness.core.cell.layout import Layout
from harness.core.packing.arithmetic import MicroBatch
from harness.core.packing.documents import Document
from harness.core.packing.options import PackingOptions
from harness.core.packing.packers import Groups, Packer, PackingStyle, Size, next_fit
from harness.upstreams.descriptor import (
    GPT_KEYS,
    LAYOUT,
    ZIGZAG,
    DataPath,
    Limit,
    LimitedCell,
    Trainer,
    padding_is_fixed,
)

_SCHEDULER = "Megatron-LM DpBalancedScheduler"
MAX_ROLLOUTS = 50  # in a bin: the default of --rl-sequence-packing-max-sequences-per-bin


def _sft_style(layout: Layout, seq_length: int, options: PackingOptions) -> PackingStyle:
    """megatron.training.datasets.sft_dataset.SFTDataset.__getitem__ (0.17 .. 0.19).

    All length + 1 tokens of a document are in the row; the label of the last one, which is the next document's first
    token, is masked out. Rows are always padded to seq_length; the last segment takes the tail.
    """
    return PackingStyle(
        packed=True,
        document_multiple=options.pad_seq_to_mult or ZIGZAG.multiple(layout),
        last_token_slots=1,
        row_length=seq_length,
        real_lengths=False,
    )


def _last_moved(groups: Groups, made: int) -> bool:
    """Move the last document of the last row with several documents to a new row at the end.

    Only rows that were packed are split, and never the first: DpBalancedScheduler.get_groups_and_subsamples.
    """
    return _moved(groups, range(made - 1, 0, -1))


def _last_moved_also_of_the_first(groups: Groups, made: int) -> bool:
    """Move the last document of the last row with several documents, which may be the first, to a new row."""
    return _moved(groups, range(made - 1, -1, -1))


def _moved(groups: Groups, rows: Sequence[int]) -> bool:
    row = next((row for row in rows if len(groups[row]) > 1), None)
    if row is not None:
        groups.append([groups[row].pop()])
    return row is not None


def packed_of_documents(style: PackingStyle) -> PackingStyle:
    """Return the style of DpBalancedScheduler for documents that it gets one by one, not in rows."""
    return replace(style, row_length=None, packer=replace(style.packer, split=_last_moved_also_of_the_first))


def _scheduler_style(layout: Layout, seq_length: int, options: PackingOptions) -> PackingStyle:
    """megatron.core.datasets.data_schedule.DpBalancedScheduler, which expects padded documents."""
    return PackingStyle(
        packed=True,
        document_multiple=options.pad_seq_to_mult or LAYOUT.multiple(layout),
        row_length=None,
        real_lengths=False,
        packer=Packer(split=_last_moved),
    )


def _scheduler_trained(style: PackingStyle, layout: Layout) -> PackingStyle:
    """Return the same on branch dev: VarlenDataset pads documents, and both offsets are passed.

    megatron.training.datasets.sft_dataset.SFTDataset._calculate_padding_divisor, its parent class.
    """
    multiple = ZIGZAG.multiple(layout) * (layout.tp if layout.sp else 1)
    return replace(style, document_multiple=multiple, real_lengths=True)


def _sft_scheduled(style: PackingStyle, layout: Layout) -> PackingStyle:
    """megatron.training.datasets.sft_dataset of branch dev; data_schedule_utils._unpack_batch knows no real lengths.

    Rows of the data set are full, so the packs that the scheduler makes of their documents are the same rows.
    """
    multiple = ZIGZAG.multiple(layout) * (layout.tp if layout.sp else 1)
    return replace(style, document_multiple=multiple, offsets_twice=True)


def _one_row(cell: LimitedCell) -> str | None:
    size = cell.micro_batch_size
    if size == 1:
        return None
    return f"micro_batch_size is {size}, and the scheduler packs all documents of a micro-batch into one row"


def _no_row_padding(cell: LimitedCell) -> str | None:
    return "pad_to_max_length is true, and the scheduler does not pad rows" if cell.options.pad_to_max_length else None


SFT = DataPath(
    name="sft",
    adapter="harness.upstreams.megatron_lm.node_sft:SftPath",
    code="Megatron-LM --sft",
    functions="Megatron-LM `--sft`: SFTDataset, get_batch, forward_step",
    releases="megatron-core wheels from 0.17; Megatron-LM checkouts from core_v0.16.1",
    style=_sft_style,
    alignment=ZIGZAG,
    options=("pad_seq_to_mult",),
    trainers=("megatron",),
    chats=True,
    sft_flag=True,
    tokens_on_last_stage=True,
    predicts_by_stages=True,
)
INTER_DOCUMENT = DataPath(
    name="inter_document",
    code="Megatron-LM --dataloader-inter-document-masking",
    functions="Megatron-LM pretraining with `--dataloader-inter-document-masking`: GPTDataset, get_batch, forward_step",
    releases="Megatron-LM checkouts from core_v0.19, with `trainer: megatron`",
    style=_sft_style,
    alignment=ZIGZAG,
    options=("pad_seq_to_mult",),
    trainers=("megatron",),
    only_trained=True,
    tokens_on_last_stage=True,
    predicts_by_stages=True,
)
SFT_SCHEDULER = DataPath(
    name="sft_scheduler",
    code="Megatron-LM --sft --sequence-packing-scheduler",
    functions="Megatron-LM `--sft --sequence-packing-scheduler`: SFTDataset or MockSFTDataset, wrap_data_iterator",
    releases="Megatron-LM branch dev of 2026-08, with `trainer: megatron`",
    style=_sft_style,
    alignment=ZIGZAG,
    trainers=("megatron",),
    only_trained=True,
    trained=_sft_scheduled,
    chats=True,
    sft_flag=True,
    scheduled="rows",
    tokens_on_last_stage=True,
    limits=(
        Limit("packing.scheduled-micro-batch", _SCHEDULER, _one_row),
        Limit("packing.scheduled-rows", _SCHEDULER, _no_row_padding),
    ),
    counts_work=True,
)
SCHEDULER = DataPath(
    name="scheduler",
    adapter="harness.upstreams.megatron_lm.node_scheduler:SchedulerPath",
    code="Megatron-LM sequence packing scheduler",
    functions="Megatron-LM `wrap_data_iterator`, DpBalancedScheduler, `get_batch_on_this_rank_for_sequence_packing`",
    releases="Megatron-LM main from 2026-08",
    style=_scheduler_style,
    alignment=LAYOUT,
    options=("pad_seq_to_mult",),
    limits=(
        Limit("packing.scheduler-micro-batch", _SCHEDULER, _one_row),
        Limit("packing.scheduler-rows", _SCHEDULER, _no_row_padding),
    ),
    counts_work=True,
    returns_padding_mask=True,
    predicts_on_any_stage=True,
    trainers=("megatron",),
    trained=_scheduler_trained,
    chats=True,
    scheduled="documents",
)


def _bins(rollouts: Sequence[Document], size: Size, seq_length: int) -> Groups:
    """Next fit from the longest rollout to the shortest, equal ones in order."""
    longest_first = sorted(rollouts, key=lambda rollout: rollout.length, reverse=True)
    return next_fit(longest_first, size, seq_length, most=MAX_ROLLOUTS)


def _with_all_offsets(blocks: Sequence[MicroBatch]) -> list[MicroBatch]:
    """Give every bin the offsets of one with the most rollouts and a tail."""
    return [replace(block, entries=MAX_ROLLOUTS + 2) for block in blocks]


def _rl_style(layout: Layout, seq_length: int, options: PackingOptions) -> PackingStyle:
    """SequencePacker.pack_sequences, create_packed_seq_params_for_bin."""
    return PackingStyle(
        packed=True,
        document_multiple=ZIGZAG.multiple(layout),
        last_token_slots=1,
        row_length=seq_length,
        real_lengths=layout.cp > 1,
        tail_is_real=True,
        longest_is_row=True,
        packer=Packer(fit=_bins, split=None, tails=True, even_shares=True, collate=_with_all_offsets),
    )


def _one_bin(cell: LimitedCell) -> str | None:
    rows = cell.micro_batch_size
    return f"micro_batch_size is {rows}, and a micro-batch is one bin" if rows > 1 else None


MEGATRON_RL = DataPath(
    name="megatron_rl",
    adapter="harness.upstreams.megatron_lm.node_rl:MegatronRlPath",
    code="Megatron-LM RL",
    functions="Megatron-LM `pack_all_trajectories`, and `forward_step` of `train_rl.py` with `get_logprobs`, "
    "`calculate_grpo_loss` and `loss_func`",
    releases="checkouts of Megatron-LM",
    style=_rl_style,
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


MEGATRON = Trainer(
    name="megatron",
    adapter="harness.upstreams.megatron_lm.node_trainer:MegatronTrainer",
    project="megatron_lm",
    model=(*GPT_KEYS, "pattern"),
    arguments="command line",
    global_batch="--global-batch-size",
    saves=True,
    blends=True,
)
