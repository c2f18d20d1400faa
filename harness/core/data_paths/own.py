"""Data paths of the harness itself: the two that controls use, and the one that calls upstream's validators."""

from __future__ import annotations

from harness.core.cell.layout import Layout
from harness.core.data_paths.descriptor import (
    FORBIDDEN_CASES,
    LAYOUT,
    NONE,
    DataPath,
    Limit,
    LimitedCell,
    one_document_per_row,
)
from harness.core.packing.options import PackingOptions, PackingStyle


def _reference_style(layout: Layout, seq_length: int, options: PackingOptions) -> PackingStyle:
    return PackingStyle(
        packed=True,
        document_multiple=options.pad_seq_to_mult or LAYOUT.multiple(layout),
        row_length=seq_length if options.pad_to_max_length else None,
        real_lengths=True,
    )


def _one_rank(cell: LimitedCell) -> str | None:
    if cell.layout.world_size == 1 and cell.micro_batch_size == 1:
        return None
    return (
        "packing rules calls validators on one rank, and each case brings its own layout: set the layout and "
        "micro_batch_size to 1"
    )


def _one_rank_tests(cell: LimitedCell) -> str | None:
    if cell.layout.world_size == 1 and cell.micro_batch_size == 1:
        return None
    return "packing upstream_tests starts pytest on one rank: set the layout and micro_batch_size to 1"


UNPACKED = DataPath(
    name="unpacked",
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
    predicts_on_any_stage=True,
)
REFERENCE = DataPath(
    name="reference",
    code="packed by the harness; model and schedule by Megatron",
    functions="none: the harness's own packer, broadcast and context split, a control",
    releases="any megatron-core from 0.14",
    style=_reference_style,
    own=True,
    alignment=LAYOUT,
    options=("pad_seq_to_mult", "pad_to_max_length"),
    counts_work=True,
    hands_padding_mask=True,
    tokens_on_last_stage=True,
    predicts_on_any_stage=True,
    sets_pad_between_seqs=True,
)
RULES = DataPath(
    name="rules",
    code="validation of arguments",
    functions="Megatron-Bridge `ConfigContainer.validate`, Megatron-LM `validate_args`",
    releases="megatron-bridge wheels 0.4 to 0.6; `validate_args` megatron-core wheels from 0.17",
    style=one_document_per_row,
    packs=False,
    alignment=NONE,
    limits=(Limit("rules.one-rank", "harness: validators are called on one rank", _one_rank),),
    validates=tuple(FORBIDDEN_CASES),
)
UPSTREAM_TESTS = DataPath(
    name="upstream_tests",
    code="its own unit tests",
    functions="upstream's own unit tests, run by pytest",
    releases="checkouts with the tests, and pytest in the stack",
    style=one_document_per_row,
    packs=False,
    alignment=NONE,
    limits=(Limit("upstream-tests.one-rank", "harness: pytest is started on one rank", _one_rank_tests),),
)
