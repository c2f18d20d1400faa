"""Data paths of Megatron-Bridge: their packing styles, and what they cannot run."""

from __future__ import annotations

from dataclasses import replace

import pytest

from harness.core.cell.config import CellConfig, TrainConfig
from harness.core.cell.layout import Layout
from harness.core.packing.documents import DocumentsConfig
from harness.core.packing.options import DEFAULT_OPTIONS, PackingOptions
from harness.core.packing.packers import Packer, PackingStyle, first_fit_decreasing, one_per_row
from harness.upstreams.table import DATA_PATHS
from tests.packing_styles import packing_style


def reason(
    data_path: str,
    rule: str,
    layout: Layout,
    *,
    micro_batch_size: int = 1,
    options: PackingOptions = DEFAULT_OPTIONS,
) -> str | None:
    """The reason that a limit of a data path gives."""
    config = CellConfig(layout=layout, data_path=data_path, micro_batch_size=micro_batch_size, options=options)
    [limit] = [limit for limit in DATA_PATHS[data_path].limits if limit.rule == rule]
    return limit.reason(config)


@pytest.mark.parametrize(
    ("multiple", "fixed", "row_length", "real_lengths"),
    [(1, False, None, False), (2, False, None, True), (3, True, 64, True)],
)
def test_offline_packing_gives_real_lengths_if_documents_are_padded(
    multiple: int, fixed: bool, row_length: int | None, real_lengths: bool
) -> None:
    options = PackingOptions(pad_seq_to_mult=multiple, pad_to_max_length=fixed, pad_cu_seqlens=fixed)
    style = packing_style("bridge_offline", Layout(), 64, options)
    assert style == PackingStyle(
        packed=True,
        document_multiple=multiple,
        row_length=row_length,
        pads_with_end=True,
        real_lengths=real_lengths,
        last_repeats=not fixed,
        longest_as_tensor=True,
        packer=Packer(
            fit=first_fit_decreasing, split=None, row_multiple=16, tails=True, describe=style.packer.describe
        ),
    )
    assert (style.packer.describe is not None) is fixed


def test_upstreams_trainer_collates_all_rows_of_a_step_at_once() -> None:
    cell = CellConfig(layout=Layout(), data_path="bridge_offline")
    assert not cell.style.packer.row_by_row
    trained = replace(cell, trainer="bridge").style
    assert trained == replace(
        cell.style, packer=replace(cell.style.packer, row_by_row=True, collate=trained.packer.collate)
    )


def test_upstreams_trainer_pads_rows_that_are_not_packed_to_the_longest() -> None:
    documents = DocumentsConfig(mode="file", lengths=(5, 20, 7, 60))
    cell = CellConfig(
        layout=Layout(dp=2), data_path="bridge_long", documents=documents, train=TrainConfig(global_batch=4)
    )
    assert [[batch.slots for batch in replica] for replica in cell.micro_batches(0)] == [[64, 64], [64, 64]]
    trained = replace(cell, trainer="bridge")
    assert [[batch.slots for batch in replica] for replica in trained.micro_batches(0)] == [[16, 16], [64, 64]]
    assert [batch.params() for replica in trained.micro_batches(0) for batch in replica] == [None] * 4


def test_the_end_of_a_row_that_upstreams_trainer_pads_must_fit_the_layout() -> None:
    (limit,) = DATA_PATHS["bridge_long"].limits
    cell = CellConfig(layout=Layout(cp=3), data_path="bridge_long")
    assert limit.reason(cell) is None
    assert limit.reason(replace(cell, layout=Layout(cp=2), trainer="bridge")) is None
    assert limit.reason(replace(cell, trainer="bridge")) == (
        "rows end at a multiple of 16 tokens, which the alignment 6 of the layout does not divide: 16 % 6 = 4"
    )


@pytest.mark.parametrize(("tp", "multiple", "real_lengths"), [(1, 1, False), (2, 2, True)])
def test_in_batch_packing_gives_each_document_a_row(tp: int, multiple: int, real_lengths: bool) -> None:
    assert packing_style("bridge_in_batch", Layout(tp=tp, sp=tp > 1), 64) == PackingStyle(
        packed=True,
        document_multiple=multiple,
        row_length=None,
        real_lengths=real_lengths,
        padded_only=True,
        longest_as_tensor=True,
        packer=Packer(fit=one_per_row),
    )


def test_a_row_packed_offline_is_one_micro_batch() -> None:
    rule = "packing.offline-micro-batch"
    assert reason("bridge_offline", rule, Layout()) is None
    assert reason("bridge_offline", rule, Layout(), micro_batch_size=2) == (
        "micro_batch_size 2: each row packed offline is one micro-batch; set micro_batch_size 1"
    )


def test_the_end_of_a_row_packed_offline_must_fit_the_layout() -> None:
    rule = "packing.offline-rows-split"
    assert reason("bridge_offline", rule, Layout(tp=16, sp=True)) is None
    assert reason("bridge_offline", rule, Layout(tp=3, sp=True)) == (
        "rows end at a multiple of 16 tokens, which the alignment 3 of the layout does not divide: 16 % 3 = 1; "
        "set pad_to_max_length"
    )
    assert reason("bridge_offline", rule, Layout(tp=3, sp=True), options=PackingOptions(pad_to_max_length=True)) is None


def test_in_batch_packing_merges_more_than_one_row() -> None:
    rule = "packing.in-batch-micro-batch"
    assert reason("bridge_in_batch", rule, Layout(), micro_batch_size=2) is None
    assert reason("bridge_in_batch", rule, Layout()) == (
        "micro_batch_size 1: in-batch packing merges the rows of a micro-batch; set micro_batch_size above 1"
    )
