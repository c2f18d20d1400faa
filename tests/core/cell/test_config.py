from __future__ import annotations

from dataclasses import replace

import pytest

from harness.core.cell.config import CellConfig, TrainConfig, checked_resume, resumed_layout, split_for_both
from harness.core.cell.layout import Layout
from harness.core.cell.timing import TimingConfig
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


CELL = CellConfig(
    layout=Layout(tp=2, pp=2, sp=True),
    data_path="sft",
    trainer="megatron",
    documents=DocumentsConfig(lengths=(16, 8, 24)),
)


@pytest.mark.parametrize("value", ["", "same", "tp1", "pp4-tp1", "tp2-pp1-cp2-vpp1"])
def test_a_value_is_same_or_sizes(value: str) -> None:
    assert checked_resume(value) == value


@pytest.mark.parametrize("value", ["other", "tp", "tp0", "dp2", "tp1 pp2", "tp1-tp2", "tp1-", "Same", "tp12345"])
def test_other_values_are_refused(value: str) -> None:
    with pytest.raises(
        ValueError, match=r"must be same, or sizes of tp, pp, cp, vpp such as tp1-pp4, each at most once"
    ):
        checked_resume(value)


@pytest.mark.parametrize(
    ("value", "layout", "found"),
    [
        ("same", Layout(tp=2, pp=2, sp=True), Layout(tp=2, pp=2, sp=True)),
        ("tp1-pp4", Layout(tp=2, pp=2, sp=True), Layout(pp=4)),
        ("tp1", Layout(tp=2, pp=2, sp=True), Layout(pp=2, dp=2)),  # ranks that are left over become replicas
        ("tp2", Layout(dp=2), Layout(tp=2, sp=True)),
        ("tp4-pp1", Layout(tp=2, pp=2), Layout(tp=4)),  # without sequence parallel, as before
        ("vpp1", Layout(pp=2, vpp=2), Layout(pp=2)),
    ],
)
def test_sizes_that_are_not_named_stay_and_replicas_follow(value: str, layout: Layout, found: Layout) -> None:
    assert resumed_layout(value, layout) == found
    assert found.world_size == layout.world_size


def test_ranks_that_cannot_be_split_so_are_refused() -> None:
    with pytest.raises(ValueError, match=r"^4 ranks are not divisible by tp x pp x cp = 3$"):
        resumed_layout("tp3-pp1", Layout(tp=2, pp=2))


@pytest.mark.parametrize(
    ("layout", "other", "dp"),
    [
        (Layout(), Layout(), 1),
        (Layout(dp=2), Layout(dp=3), 6),
        (Layout(pp=2, vpp=2), Layout(pp=4), 1),
        (Layout(pp=4), Layout(pp=2, vpp=2, dp=2), 4),  # interleaved stages need as many micro-batches
        (Layout(pp=2, vpp=2, dp=3), Layout(dp=4), 6),
    ],
)
def test_rows_are_split_for_the_replicas_of_both_layouts(layout: Layout, other: Layout, dp: int) -> None:
    assert split_for_both(layout, other) == replace(layout, dp=dp)


def test_the_resumed_part_trains_the_later_steps_and_nothing_else() -> None:
    train = TrainConfig(steps=3, save_step=2)
    cell = replace(CELL, resume="tp1", train=train, canaries=("order",), timing=TimingConfig(unpacked=True))
    later = cell.resumed
    assert (later.layout, later.saved_in) == (Layout(pp=2, dp=2), CELL.layout)
    assert (later.start_step, list(later.steps)) == (2, [2])
    assert (cell.start_step, list(cell.steps)) == (0, [0, 1, 2])
    assert (later.resume, later.canaries, later.fingerprints, later.timing.timed) == ("", (), False, False)
    assert [later.micro_batches(2)[dp] for dp in (0, 1)] == [cell.micro_batches(2)[0][dp::2] for dp in (0, 1)]


@pytest.mark.parametrize(("resume", "stored"), [("", ()), ("same", (1, 3)), ("tp1", (1,)), ("tp2", (1, 3))])
def test_the_state_is_recorded_when_saved_and_at_the_end_if_it_must_be_the_same(
    resume: str, stored: tuple[int, ...]
) -> None:
    cell = replace(CELL, resume=resume)
    assert cell.stored == stored
    if resume:
        assert cell.resumed.stored == stored


def test_a_layout_that_is_impossible_leaves_the_rows_alone() -> None:
    assert replace(CELL, resume="tp3-pp1").row_layout == CELL.layout
