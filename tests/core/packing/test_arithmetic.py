from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from harness.core.cell.layout import Layout
from harness.core.packing.arithmetic import (
    PAD,
    MicroBatch,
    PackedParams,
    contiguous,
    workload,
    zigzag,
)
from harness.core.packing.documents import Document
from harness.core.packing.options import PackingOptions, align_up
from harness.core.packing.packers import (
    PackingStyle,
    first_fit_decreasing,
    plan_step,
    row_multiple,
)
from harness.upstreams.table import DATA_PATHS
from tests.packing_styles import pack, packing_style

SEQ = 64
PATHS = st.sampled_from(list(DATA_PATHS))
LENGTHS = st.lists(st.integers(1, SEQ - 1), min_size=1, max_size=16)
LAYOUTS = st.builds(
    lambda tp, cp, dp, vpp: Layout(tp=tp, cp=cp, dp=dp, pp=2, vpp=vpp, sp=tp > 1),
    st.sampled_from([1, 2, 4]),
    st.sampled_from([1, 2, 4]),
    st.integers(1, 3),
    st.integers(1, 2),
)


def documents_of(lengths: list[int], masked: int | None = None) -> list[Document]:
    return [
        Document(index=index, length=length, original_length=length, masked=index == masked)
        for index, length in enumerate(lengths)
    ]


@given(value=st.integers(0, 10**6), multiple=st.integers(1, 1000))
def test_align_up_is_the_smallest_multiple_that_is_not_smaller(value: int, multiple: int) -> None:
    aligned = align_up(value, multiple)
    assert aligned % multiple == 0
    assert value <= aligned < value + multiple


def test_each_data_path_has_its_own_style() -> None:
    layout = Layout(tp=4, cp=2, sp=True)
    assert packing_style("unpacked", layout, SEQ) == PackingStyle(
        packed=False, document_multiple=1, row_length=SEQ, real_lengths=False
    )
    assert packing_style("reference", layout, SEQ) == PackingStyle(
        packed=True, document_multiple=8, row_length=None, real_lengths=True
    )
    assert packing_style("sft", layout, SEQ) == PackingStyle(
        packed=True, document_multiple=4, last_token_slots=1, row_length=SEQ, real_lengths=False
    )
    assert packing_style("sft", Layout(tp=4, sp=True), SEQ).document_multiple == 1
    assert packing_style("skyrl", layout, SEQ) == PackingStyle(
        packed=True, document_multiple=16, row_length=None, real_lengths=False
    )
    assert packing_style("skyrl", Layout(tp=4, sp=True), SEQ).document_multiple == 4
    scheduled = packing_style("scheduler", layout, SEQ)
    assert scheduled == PackingStyle(
        packed=True, document_multiple=8, row_length=None, real_lengths=False, packer=scheduled.packer
    )
    assert not scheduled.packer.splits_to_single_documents


def test_options_replace_the_multiple_and_the_row_length_of_packed_paths_only() -> None:
    options = PackingOptions(pad_seq_to_mult=16, pad_to_max_length=True)
    layout = Layout(cp=2)
    control = packing_style("reference", layout, SEQ, options)
    assert (control.document_multiple, control.row_length) == (16, SEQ)
    assert packing_style("sft", layout, SEQ, options).document_multiple == 16
    assert packing_style("unpacked", layout, SEQ, options) == packing_style("unpacked", layout, SEQ)


@given(lengths=LENGTHS, path=PATHS, layout=LAYOUTS, micro_batch_size=st.integers(1, 3), masked=st.integers(0, 15))
def test_a_planned_step_holds_every_document_once_and_every_segment_is_aligned(
    lengths: list[int], path: str, layout: Layout, micro_batch_size: int, masked: int
) -> None:
    documents = documents_of(lengths, masked)
    style = packing_style(path, layout, SEQ)
    try:
        step = plan_step(documents, style, layout, seq_length=SEQ, micro_batch_size=micro_batch_size)
    except ValueError:
        assume(False)
    batches = list(itertools.chain(*step))
    placed = [item.document for batch in batches for row in batch.rows for item in row.placed]
    assert sorted(placed, key=lambda document: document.index) == documents
    assert len(step) == layout.dp
    assert len({len(replica) for replica in step}) == 1  # replicas have equally many micro-batches
    assert len(step[0]) % (layout.pp if layout.vpp > 1 else 1) == 0
    assert sum(batch.real_tokens for batch in batches) == sum(lengths)
    assert sum(batch.loss_tokens for batch in batches) == sum(d.length for d in documents if not d.masked)
    for batch in batches:
        assert len(batch.rows) == micro_batch_size
        assert batch.slots == sum(row.length for row in batch.rows)
        assert all(row.length == SEQ for row in batch.rows) or style.row_length is None
        # A packer that makes micro-batches of several rows equally long may lengthen a row beyond it.
        assert all(row.length <= SEQ for row in batch.rows) or (style.row_length is None and micro_batch_size > 1)
        assert all(item.padded_length % style.document_multiple == 0 for item in batch.placed)


@given(lengths=LENGTHS, path=PATHS, layout=LAYOUTS)
def test_context_parallel_ranks_share_out_all_slots(lengths: list[int], path: str, layout: Layout) -> None:
    style = packing_style(path, layout, SEQ)
    (row, *_) = pack(documents_of(lengths), style, seq_length=SEQ, multiple=1)
    batch = MicroBatch(rows=(row, row), style=style)
    shares = [list(itertools.chain(*batch.local_slots(layout.cp, rank))) for rank in range(layout.cp)]
    assert sorted(itertools.chain(*shares)) == list(range(batch.slots))
    assert {len(share) for share in shares} == {batch.slots // layout.cp}
    if layout.sp:
        assert all(
            len(part) % layout.tp == 0 for rank in range(layout.cp) for part in batch.local_slots(layout.cp, rank)
        )


@given(lengths=LENGTHS, path=st.sampled_from(["reference", "sft"]), layout=LAYOUTS)
def test_the_metadata_describes_the_stream(lengths: list[int], path: str, layout: Layout) -> None:
    for replica in plan_step(
        documents_of(lengths),
        packing_style(path, layout, SEQ),
        Layout(cp=layout.cp),
        seq_length=SEQ,
        micro_batch_size=1,
    ):
        for batch in replica:
            params = batch.params()
            assert params is not None
            physical = params.cu_seqlens_q_padded or params.cu_seqlens_q
            real = params.cu_seqlens_q
            assert physical[0] == real[0] == 0
            assert physical[-1] == batch.slots
            assert list(physical[:-1]) == [item.start for item in batch.placed]
            assert params.max_seqlen_q == max(b - a for a, b in itertools.pairwise(physical))
            assert (params.cu_seqlens_kv, params.max_seqlen_kv) == (params.cu_seqlens_q, params.max_seqlen_q)
            if path == "reference":
                assert [b - a for a, b in itertools.pairwise(real)] == [i.document.length for i in batch.placed]
            owners = batch.slot_owners()
            assert len(owners) == batch.slots
            assert sum(owner != PAD for owner, _ in owners) == batch.real_tokens


def test_a_worked_example_of_both_packed_paths() -> None:
    documents = documents_of([3, 5, 1])
    layout = Layout(cp=2)
    (batch,) = plan_step(documents, packing_style("reference", layout, 32), layout, seq_length=32, micro_batch_size=1)[
        0
    ]
    assert batch.params() == PackedParams(
        cu_seqlens_q=(0, 3, 8, 9),
        cu_seqlens_kv=(0, 3, 8, 9),
        cu_seqlens_q_padded=(0, 4, 12, 16),
        cu_seqlens_kv_padded=(0, 4, 12, 16),
        max_seqlen_q=8,
        max_seqlen_kv=8,
    )
    assert batch.local_slots(2, 0) == [[0, 3, 4, 5, 10, 11, 12, 15]]
    assert batch.local_slots(2, 1) == [[1, 2, 6, 7, 8, 9, 13, 14]]
    (batch,) = plan_step(documents, packing_style("sft", layout, 32), layout, seq_length=32, micro_batch_size=1)[0]
    assert batch.params() == PackedParams(
        cu_seqlens_q=(0, 4, 12, 32),
        cu_seqlens_kv=(0, 4, 12, 32),
        cu_seqlens_q_padded=None,
        cu_seqlens_kv_padded=None,
        max_seqlen_q=20,
        max_seqlen_kv=20,
    )


def test_unpacked_rows_have_no_metadata_and_are_cut_whole() -> None:
    style = packing_style("unpacked", Layout(cp=2), 8)
    (batch,) = plan_step(documents_of([3, 8]), style, Layout(cp=2), seq_length=8, micro_batch_size=2)[0]
    assert batch.params() is None
    assert batch.local_slots(2, 0) == [[0, 1, 6, 7], [8, 9, 14, 15]]


def test_a_style_chooses_how_context_ranks_share_a_stream() -> None:
    style = replace(packing_style("reference", Layout(cp=2), SEQ), split=contiguous)
    [row] = pack(documents_of([3, 5]), style, seq_length=SEQ, multiple=1)
    batch = MicroBatch(rows=(row,), style=style)
    assert [batch.local_slots(2, rank) for rank in range(2)] == [[[0, 1, 2, 3, 4, 5]], [[6, 7, 8, 9, 10, 11]]]
    with pytest.raises(ValueError, match="the stream has 12 slots, not a multiple of cp = 5"):
        batch.local_slots(5, 0)


def test_rows_go_round_the_replicas_in_blocks_of_the_micro_batch() -> None:
    style = packing_style("unpacked", Layout(dp=2), 8)
    step = plan_step(documents_of([1] * 8), style, Layout(dp=2), seq_length=8, micro_batch_size=2)
    held = [[[item.document.index for item in batch.placed] for batch in replica] for replica in step]
    assert held == [[[0, 1], [4, 5]], [[2, 3], [6, 7]]]


def test_rows_are_split_until_their_number_divides() -> None:
    style = packing_style("reference", Layout(), SEQ)
    rows = pack(documents_of([10, 10, 10, 10, 64]), style, seq_length=SEQ, multiple=4)
    assert [[item.document.index for item in row.placed] for row in rows] == [[0], [1], [2, 3], [4]]
    halves = pack(documents_of([10, 10, 10, 10]), style, seq_length=SEQ, multiple=2)
    assert [[item.document.index for item in row.placed] for row in halves] == [[0, 1], [2, 3]]
    with pytest.raises(ValueError, match="2 documents make 2 rows of 64 tokens, which cannot be split"):
        pack(documents_of([64, 64]), style, seq_length=SEQ, multiple=3)


def test_a_segment_that_does_not_divide_is_refused_with_its_arithmetic() -> None:
    with pytest.raises(ValueError, match=r"segment \[4, 10\) has 6 slots, not a multiple of 2 \* cp = 4"):
        zigzag([0, 4, 10], 2, 0)


def test_interleaving_needs_a_multiple_of_pp_micro_batches() -> None:
    assert row_multiple(Layout(pp=4, vpp=2, dp=3), 2) == 24
    assert row_multiple(Layout(pp=4, dp=3), 2) == 6


def rows_of(lengths: list[int], multiple: int) -> list[list[int]]:
    style = packing_style("scheduler", Layout(), SEQ)
    rows = pack(documents_of(lengths), style, seq_length=SEQ, multiple=multiple)
    return [[item.document.index for item in row.placed] for row in rows]


def test_the_scheduler_moves_last_documents_to_rows_of_their_own_and_leaves_the_first_row() -> None:
    assert rows_of([20] * 8, 1) == [[0, 1, 2], [3, 4, 5], [6, 7]]
    assert rows_of([20] * 8, 4) == [[0, 1, 2], [3, 4, 5], [6], [7]]
    assert rows_of([20] * 8, 6) == [[0, 1, 2], [3], [6], [7], [5], [4]]
    with pytest.raises(ValueError, match="8 documents make 6 rows"):
        rows_of([20] * 8, 7)


@given(st.lists(st.integers(1, 40), min_size=1, max_size=60), st.integers(8, 40))
def test_longest_first_takes_the_first_row_with_room(lengths: list[int], seq_length: int) -> None:
    style = packing_style("bridge_offline", Layout(), seq_length)
    documents = documents_of(lengths)
    rows: list[list[Document]] = []
    for document in sorted(documents, key=lambda item: -item.length):
        room = (row for row in rows if sum(map(style.size, [*row, document])) <= seq_length)
        row = next(room, None)
        if row is None:
            rows.append([document])
        else:
            row.append(document)
    assert first_fit_decreasing(documents, style.size, seq_length) == rows


def test_bridge_offline_puts_the_longest_first_and_fills_rows_with_a_segment_of_their_own() -> None:
    style = packing_style("bridge_offline", Layout(), SEQ)
    rows = pack(documents_of([5, 20, 5, 40, 3]), style, seq_length=SEQ, multiple=1)
    assert [[item.document.index for item in row.placed] for row in rows] == [[3, 1, 4], [0, 2]]
    assert [(row.tail, row.length) for row in rows] == [(1, 64), (6, 16)]
    params = MicroBatch(rows=(rows[1],), style=style).params()
    assert params is not None
    assert (params.cu_seqlens_q, params.cu_seqlens_q_padded, params.max_seqlen_q) == ((0, 5, 10, 16), None, 6)


def test_rows_of_the_reference_get_a_tail_up_to_a_multiple_also_beyond_seq_length() -> None:
    style = packing_style("reference", Layout(cp=2), SEQ, PackingOptions(pad_row_to_mult=48))
    rows = pack(documents_of([SEQ, 13]), style, seq_length=SEQ, multiple=1)
    assert [(row.placed[-1].padded_length, row.tail) for row in rows] == [(SEQ, -SEQ % 48), (16, 32)]


def test_rows_that_are_collated_by_step_are_as_long_as_the_longest_with_as_many_offsets() -> None:
    style = DATA_PATHS["bridge_offline"].trained(packing_style("bridge_offline", Layout(), SEQ), Layout())
    documents = documents_of([60, 5, 3, 2])
    [[first, second]] = plan_step(documents, style, Layout(), seq_length=SEQ, micro_batch_size=1)
    assert (first.slots, second.slots) == (64, 64)
    params = [batch.params() for batch in (first, second)]
    assert [one and one.cu_seqlens_q for one in params] == [(0, 60, 63, 64), (0, 5, 7, 64)]
    assert [one and one.max_seqlen_q for one in params] == [60, 57]


def test_replicas_are_collated_on_their_own() -> None:
    style = DATA_PATHS["bridge_offline"].trained(packing_style("bridge_offline", Layout(dp=2), SEQ), Layout(dp=2))
    documents = documents_of([63, 30, 20])
    [[long], [short]] = plan_step(documents, style, Layout(dp=2), seq_length=SEQ, micro_batch_size=1)
    assert [(batch.slots, batch.entries) for batch in (long, short)] == [(64, 3), (64, 4)]


def test_replicas_that_are_collated_by_step_take_rows_one_at_a_time() -> None:
    style = DATA_PATHS["bridge_long"].trained(packing_style("bridge_long", Layout(dp=2), SEQ), Layout(dp=2))
    documents = documents_of([5, 20, 7, 60, 9, 3, 11, 40])
    replicas = plan_step(documents, style, Layout(dp=2), seq_length=SEQ, micro_batch_size=2)
    taken = [[[item.document.index for item in batch.placed] for batch in replica] for replica in replicas]
    assert taken == [[[0, 2], [4, 6]], [[1, 3], [5, 7]]]
    assert [[batch.slots for batch in replica] for replica in replicas] == [[32, 32], [128, 128]]


def test_bridge_offline_splits_no_row() -> None:
    style = packing_style("bridge_offline", Layout(), SEQ)
    documents = [Document(index=index, length=3, original_length=3) for index in range(4)]
    assert len(pack(documents, style, seq_length=SEQ, multiple=1)) == 1
    with pytest.raises(ValueError, match="4 documents make 1 rows of"):
        pack(documents, style, seq_length=SEQ, multiple=2)


def test_bridge_offline_passes_real_lengths_only_if_documents_are_padded() -> None:
    style = packing_style("bridge_offline", Layout(cp=2), SEQ)
    [row] = pack(documents_of([6, 3]), style, seq_length=SEQ, multiple=1)
    params = MicroBatch(rows=(row,), style=style).params()
    assert params is not None
    assert (params.cu_seqlens_q, params.cu_seqlens_q_padded) == ((0, 6, 9, 9), (0, 8, 12, 16))
    assert params.max_seqlen_q == 8


@given(lengths=st.lists(st.integers(1, SEQ - 1), min_size=48), layout=LAYOUTS, micro_batch_size=st.integers(2, 4))
def test_in_batch_packing_gives_each_document_a_row_and_merges_the_rows_of_a_micro_batch(
    lengths: list[int], layout: Layout, micro_batch_size: int
) -> None:
    multiple = row_multiple(layout, micro_batch_size)
    lengths = lengths[: len(lengths) // multiple * multiple]
    style = packing_style("bridge_in_batch", layout, SEQ)
    step = plan_step(documents_of(lengths), style, layout, seq_length=SEQ, micro_batch_size=micro_batch_size)
    for batch in itertools.chain(*step):
        sizes = [align_up(item.document.length, layout.alignment) for item in batch.placed]
        real = tuple(itertools.accumulate((item.document.length for item in batch.placed), initial=0))
        padded = tuple(itertools.accumulate(sizes, initial=0))
        params = batch.params()
        assert params is not None
        assert len(batch.placed) == micro_batch_size
        assert (batch.slots, params.max_seqlen_q, params.cu_seqlens_q) == (sum(sizes), max(sizes), real)
        assert params.cu_seqlens_q_padded == (padded if layout.alignment > 1 else None)


@given(lengths=st.lists(st.integers(1, SEQ - 1), min_size=48), tp=st.sampled_from([1, 2, 4]), size=st.integers(1, 4))
def test_without_packing_skyrl_pads_rows_to_the_longest_of_their_micro_batch(
    lengths: list[int], tp: int, size: int
) -> None:
    style = packing_style("skyrl", Layout(tp=tp), SEQ, PackingOptions(remove_microbatch_padding=False))
    documents = documents_of(lengths[: len(lengths) // size * size])
    [batches] = plan_step(documents, style, Layout(tp=tp), seq_length=SEQ, micro_batch_size=size)
    assert [item.document for batch in batches for item in batch.placed] == documents
    for batch in batches:
        width = align_up(max(item.document.length for item in batch.placed), tp)
        assert [row.length for row in batch.rows] == [width] * size
        assert [item.start for item in batch.placed] == [index * width for index in range(size)]
        assert batch.params() is None
        assert batch.local_slots(1, 0) == [list(range(index * width, (index + 1) * width)) for index in range(size)]


def test_further_entries_repeat_the_last_real_and_the_last_padded_offset() -> None:
    style = PackingStyle(packed=True, document_multiple=4, row_length=None, real_lengths=True)
    documents = [Document(index=index, length=length, original_length=length) for index, length in enumerate((3, 5))]
    (row,) = pack(documents, style, seq_length=SEQ, multiple=1)
    params = MicroBatch(rows=(row,), style=style, entries=5).params()
    assert params is not None
    assert params.cu_seqlens_q == (0, 3, 8, 8, 8)
    assert params.cu_seqlens_q_padded == (0, 4, 12, 12, 12)


def test_fixed_entries_are_as_many_in_every_row_and_repeat_the_end() -> None:
    options = PackingOptions(pad_cu_seqlens=True, pad_to_max_length=True, metadata=True)
    style = packing_style("bridge_offline", Layout(), SEQ, options)
    [batches] = plan_step(documents_of([40, 3, 50, 2, 1]), style, Layout(), seq_length=SEQ, micro_batch_size=1)
    found = [batch.params() for batch in batches]
    assert [params and params.cu_seqlens_q for params in found] == [(0, 50, 53, 55, 56, 64), (0, 40, 64, 64, 64, 64)]
    assert {params and params.max_seqlen_q for params in found} == {50}


def test_fixed_entries_repeat_the_end_of_the_real_and_of_the_padded_offsets() -> None:
    options, layout = PackingOptions(pad_cu_seqlens=True, pad_to_max_length=True, metadata=True), Layout(cp=2)
    style = packing_style("bridge_offline", layout, SEQ, options)
    [batches] = plan_step(documents_of([38, 3, 50, 2, 1]), style, layout, seq_length=SEQ, micro_batch_size=1)
    found = [batch.params() for batch in batches]
    assert [(params.cu_seqlens_q, params.cu_seqlens_q_padded) for params in found if params] == [
        ((0, 50, 53, 55, 56, 56), (0, 52, 56, 60, 64, 64)),
        ((0, 38, 38, 38, 38, 38), (0, 40, 64, 64, 64, 64)),
    ]


def test_a_document_that_fills_a_row_to_its_last_slot_still_fits() -> None:
    style = packing_style("reference", Layout(), SEQ)
    [batches] = plan_step(documents_of([31, 33, 5]), style, Layout(), seq_length=SEQ, micro_batch_size=1)
    assert [params.cu_seqlens_q for batch in batches if (params := batch.params())] == [(0, 31, 64), (0, 5)]


@given(lengths=LENGTHS, layout=LAYOUTS)
def test_tails_belong_to_no_document_and_complete_the_offsets(lengths: list[int], layout: Layout) -> None:
    style = packing_style("bridge_offline", layout, SEQ)
    for row in pack(documents_of(lengths), style, seq_length=SEQ, multiple=1):
        batch = MicroBatch(rows=(row,), style=style)
        params = batch.params()
        assert params is not None
        assert (params.cu_seqlens_q_padded or params.cu_seqlens_q)[-1] == batch.slots
        assert batch.slots % 16 == 0
        owners = [owner for owner, _ in batch.slot_owners()]
        assert len(owners) == batch.slots
        assert owners[batch.slots - row.tail :] == [PAD] * row.tail


@given(lengths=LENGTHS, layout=LAYOUTS)
def test_with_fixed_entries_the_longest_segment_is_that_of_all_rows_with_their_tails(
    lengths: list[int], layout: Layout
) -> None:
    """Computed independently. The same in every row, so that neither a shape nor a value changes between rows."""
    options = PackingOptions(pad_cu_seqlens=True, pad_to_max_length=True, metadata=True)
    style, alone = packing_style("bridge_offline", layout, SEQ, options), Layout()
    [batches] = plan_step(documents_of(lengths), style, alone, seq_length=SEQ, micro_batch_size=1)
    sizes = [[style.size(item.document) for item in batch.placed] for batch in batches]
    longest = max(max(*row, SEQ - sum(row)) for row in sizes)
    entries = max(len(row) for row in sizes) + 2
    for batch in batches:
        params = batch.params()
        assert params is not None
        assert (params.max_seqlen_q, params.max_seqlen_kv) == (longest, longest)
        assert len(params.cu_seqlens_q) == entries


def test_a_tail_can_be_the_longest_segment_of_a_step() -> None:
    options = PackingOptions(pad_cu_seqlens=True, pad_to_max_length=True, metadata=True)
    style = packing_style("bridge_offline", Layout(), SEQ, options)
    [batches] = plan_step(documents_of([30, 30, 30]), style, Layout(), seq_length=SEQ, micro_batch_size=1)
    assert {params.max_seqlen_q for batch in batches if (params := batch.params())} == {34}


@given(lengths=LENGTHS, path=PATHS, layout=LAYOUTS)
def test_no_token_is_lost_split_or_reordered(lengths: list[int], path: str, layout: Layout) -> None:
    """In the merged stream of a row, the slots of a document are its tokens in order, and each is there once."""
    style = packing_style(path, layout, SEQ)
    rows = pack(documents_of(lengths), style, seq_length=SEQ, multiple=1)
    owners = [owner for row in rows for owner in MicroBatch(rows=(row,), style=style).slot_owners() if owner[0] != PAD]
    runs = [(index, [at for _, at in run]) for index, run in itertools.groupby(owners, key=lambda owner: owner[0])]
    assert sorted(runs) == [(index, list(range(length))) for index, length in enumerate(lengths)]


@given(chunks=st.lists(st.integers(0, 3), min_size=1, max_size=6), cp=st.sampled_from([1, 2, 4, 8]))
def test_the_shares_of_context_parallel_ranks_put_together_give_the_stream_back(chunks: list[int], cp: int) -> None:
    """Chunk c of a segment is the first half of the share of rank c, or the second half of that of 2 cp - 1 - c."""
    bounds = [0, *itertools.accumulate(2 * cp * chunk for chunk in chunks)]
    shares = [iter(zigzag(bounds, cp, rank)) for rank in range(cp)]
    stream: list[int] = []
    for chunk in chunks:
        halves = {rank: [next(shares[rank]) for _ in range(2 * chunk)] for rank in range(cp)}
        places = (min(number, 2 * cp - 1 - number) for number in range(2 * cp))
        stream += [
            slot
            for number, rank in enumerate(places)
            for slot in (halves[rank][:chunk] if number < cp else halves[rank][chunk:])
        ]
    assert stream == list(range(bounds[-1]))


@given(
    lengths=st.lists(st.integers(1, SEQ - 1), min_size=24, max_size=24),  # so that every dp x pp can share them
    tp=st.sampled_from([1, 2]),
    cp=st.sampled_from([1, 2]),
    dp=st.sampled_from([1, 2, 3]),
    vpp=st.sampled_from([1, 2]),
)
def test_real_lengths_are_summed_once_whatever_the_layout(
    lengths: list[int], tp: int, cp: int, dp: int, vpp: int
) -> None:
    layout = Layout(tp=tp, cp=cp, dp=dp, pp=2, vpp=vpp, sp=tp > 1)
    documents = [Document(index=i, length=length, original_length=length) for i, length in enumerate(lengths)]
    step = plan_step(documents, packing_style("reference", layout, SEQ), layout, seq_length=SEQ, micro_batch_size=1)
    for replica in range(dp):
        found = workload(step, replica)
        assert (found.tokens, found.squares) == (sum(lengths), sum(length**2 for length in lengths))
        assert found.micro_batches == len(step[replica])


def test_lengths_are_those_of_the_offsets_and_rows_where_nothing_is_packed() -> None:
    documents = [Document(index=i, length=length, original_length=length) for i, length in enumerate((3, 9))]

    def counted(data_path: str, layout: Layout) -> tuple[int, int]:
        style = packing_style(data_path, layout, SEQ)
        work = workload(plan_step(documents, style, layout, seq_length=SEQ, micro_batch_size=1), 0)
        return work.tokens, work.squares

    assert counted("scheduler", Layout(cp=2)) == (4 + 12, 4**2 + 12**2)  # only padded lengths are passed
    assert counted("unpacked", Layout()) == (2 * SEQ, 2 * SEQ**2)
