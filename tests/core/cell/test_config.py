from __future__ import annotations

from dataclasses import replace

import pytest

from harness.core.cell.config import CellConfig, TrainConfig
from harness.core.cell.layout import Layout
from harness.core.packing.arithmetic import dealt
from harness.core.packing.documents import DocumentsConfig
from harness.core.packing.options import PackingOptions


def test_options_reach_the_packing_arithmetic() -> None:
    documents = DocumentsConfig(mode="file", lengths=(3, 5))
    config = CellConfig(layout=Layout(), data_path="reference", documents=documents, train=TrainConfig(global_batch=2))
    (batch,) = config.micro_batches(0)[0]
    assert [item.padded_length for item in batch.placed] == [3, 5]
    (batch,) = replace(config, options=PackingOptions(pad_seq_to_mult=4)).micro_batches(0)[0]
    assert [item.padded_length for item in batch.placed] == [4, 8]
    (batch,) = replace(config, options=PackingOptions(pad_to_max_length=True)).micro_batches(0)[0]
    assert [item.padded_length for item in batch.placed] == [3, 61]


@pytest.mark.parametrize("layout", [Layout(), Layout(dp=2), Layout(cp=2, dp=2)])
def test_rows_are_in_the_order_in_which_upstreams_samplers_deal_them(layout: Layout) -> None:
    """MegatronPretrainingSampler: micro_batch_size samples for each replica in turn."""
    cell = CellConfig(layout=layout, data_path="sft", documents=DocumentsConfig(lengths=(16, 40, 24)))
    rows, size, dp = cell.rows(0), cell.micro_batch_size, cell.layout.dp
    for rank, replica in enumerate(cell.micro_batches(0)):
        for number, micro_batch in enumerate(replica):
            start = (number * dp + rank) * size
            assert tuple(rows[start : start + size]) == micro_batch.rows


@pytest.mark.parametrize("dp", [1, 2, 4])
def test_rows_that_replicas_take_one_at_a_time_are_in_one_order_in_every_layout(dp: int) -> None:
    """MegatronPretrainingBatchSampler, as it deals the rows of a file in which documents are not packed."""
    train = TrainConfig(global_batch=16)
    documents = DocumentsConfig(mode="file", lengths=(5, 20, 7, 60, 9, 3, 11, 40))
    cell = CellConfig(layout=Layout(dp=dp), data_path="bridge_long", trainer="bridge", documents=documents, train=train)
    rows = replace(cell, micro_batch_size=2).rows(0)
    assert [item.document.index for row in rows for item in row.placed] == list(range(16))


def test_documents_that_upstream_packs_are_dealt_to_replicas_in_turn_and_packed_replica_by_replica() -> None:
    documents = DocumentsConfig(mode="file", lengths=(20,) * 8)
    cell = CellConfig(layout=Layout(dp=2), data_path="scheduler", trainer="megatron", documents=documents)
    assert [item.document.index for row in cell.samples(0) for item in row.placed] == list(range(8))
    packs = [[[item.document.index for item in one.placed] for one in replica] for replica in cell.micro_batches(0)]
    assert packs == [[[0, 2, 4], [5]], [[6, 1, 3], [7]]]
    own = replace(cell, trainer="harness")
    assert [item.document.index for batch in own.micro_batches(0)[0] for item in batch.placed] == [0, 1, 2, 6]


def test_full_rows_are_in_the_order_that_the_scheduler_deals_as_planned() -> None:
    documents = DocumentsConfig(mode="file", lengths=(40,) * 6)
    cell = CellConfig(layout=Layout(dp=2), data_path="sft_scheduler", trainer="megatron", documents=documents)
    cell = replace(cell, train=TrainConfig(global_batch=6))
    read = dealt(cell.samples(0), 2)  # replica by replica
    planned = [batch.rows[0] for turn in zip(*cell.micro_batches(0)) for batch in turn]
    assert read == planned
    assert [row.placed[0].document.index for row in cell.samples(0)] == [0, 3, 1, 4, 2, 5]
    params = cell.micro_batches(0)[0][0].params()
    assert params is not None and params.cu_seqlens_q == params.cu_seqlens_q_padded == (0, 64)


def test_mock_documents_are_read_one_by_one_by_every_scheduler() -> None:
    documents = DocumentsConfig(mode="distribution", min_seq_len=21, max_seq_len=21, mock=True)
    cell = CellConfig(layout=Layout(), data_path="sft_scheduler", trainer="megatron", documents=documents)
    cell = replace(cell, train=TrainConfig(global_batch=4))
    assert [len(row.placed) for row in cell.samples(0)] == [1] * 4
    (packs,) = cell.micro_batches(0)
    assert [[item.padded_length for item in pack.placed] for pack in packs] == [[21, 21, 21], [21]]


def test_a_part_has_the_evaluations_after_the_steps_that_it_trains() -> None:
    train = TrainConfig(steps=4, eval_interval=2, save_step=2)
    cell = CellConfig(layout=Layout(), data_path="sft", trainer="megatron", resume="same", train=train)
    assert cell.evaluations == {0: 2, 1: 4, 2: 4}
    assert cell.resumed.evaluations == {1: 4, 2: 4}
    assert replace(cell, train=TrainConfig(steps=4)).evaluations == {}
