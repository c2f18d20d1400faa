from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.core.cell.layout import Coordinates, Layout
from harness.core.setting import keys_of, upstream_of

SIZES = st.integers(1, 4)
LAYOUTS = st.builds(
    Layout, tp=SIZES, pp=SIZES, cp=SIZES, dp=SIZES, vpp=SIZES, sp=st.booleans(), pp_before_dp=st.booleans()
)


@pytest.mark.parametrize("name", ["tp", "pp", "cp", "dp", "ep", "vpp"])
def test_a_size_is_1_by_default_and_bounded(name: str) -> None:
    key = keys_of(Layout)[name]
    assert (key.default, key.setting.ge, key.setting.le) == (1, 1, 1024 if name == "vpp" else 4096)
    assert key.setting.doc.endswith(".")


def test_sizes_have_the_names_of_megatron() -> None:
    assert upstream_of(Layout(tp=2, pp=3)) == {
        "tensor_model_parallel_size": 2,
        "pipeline_model_parallel_size": 3,
        "context_parallel_size": 1,
        "expert_model_parallel_size": 1,
        "expert_tensor_parallel_size": 0,
        "virtual_pipeline_model_parallel_size": 1,
        "sequence_parallel": False,
        "num_layers_in_first_pipeline_stage": None,
        "num_layers_in_last_pipeline_stage": None,
        "account_for_embedding_in_pipeline_split": False,
        "account_for_loss_in_pipeline_split": False,
        "pipeline_model_parallel_layout": None,
    }


@pytest.mark.parametrize(
    ("layout", "parts"),
    [
        (Layout(), ["tp1", "pp1", "cp1"]),
        (Layout(sp=True), ["tp1", "pp1", "cp1"]),
        (Layout(tp=2, sp=True), ["tp2", "pp1", "cp1"]),
        (Layout(tp=2), ["tp2", "pp1", "cp1", "nosp"]),
        (Layout(tp=4, dp=2, ep=2, vpp=2, pp=2, sp=True), ["tp4", "pp2", "cp1", "dp2", "ep2", "vpp2"]),
    ],
)
def test_a_name_has_the_sizes_and_says_where_sequence_parallel_is_off(layout: Layout, parts: list[str]) -> None:
    assert layout.name_parts() == parts


@given(layout=LAYOUTS)
def test_ranks_and_coordinates_are_one_to_one(layout: Layout) -> None:
    places = [layout.coordinates(rank) for rank in range(layout.world_size)]
    assert len(set(places)) == layout.world_size == layout.tp * layout.pp * layout.cp * layout.dp
    assert [layout.rank(place) for place in places] == list(range(layout.world_size))
    for place in places:
        assert place.tp < layout.tp
        assert place.pp < layout.pp
        assert place.cp < layout.cp
        assert place.dp < layout.dp


def test_tp_varies_fastest_then_cp_then_dp_and_pp_slowest() -> None:
    layout = Layout(tp=2, cp=2, dp=2, pp=2)
    order = [layout.coordinates(rank) for rank in range(16)]
    expected = [
        Coordinates(tp=tp, cp=cp, dp=dp, pp=pp)
        for pp, dp, cp, tp in itertools.product(range(2), range(2), range(2), range(2))
    ]
    assert order == expected


@pytest.mark.parametrize("rank", [-1, 4])
def test_a_rank_outside_the_world_is_refused(rank: int) -> None:
    with pytest.raises(ValueError, match=rf"^rank {rank} is outside 0\.\.3$"):
        Layout(tp=2, pp=2).coordinates(rank)


@given(pp=SIZES, vpp=SIZES, per_chunk=st.integers(1, 3))
def test_every_layer_is_on_exactly_one_chunk_of_the_stage_that_is_named_for_it(
    pp: int, vpp: int, per_chunk: int
) -> None:
    layout = Layout(pp=pp, vpp=vpp)
    layers = pp * vpp * per_chunk
    seen = []
    for stage, chunk in itertools.product(range(pp), range(vpp)):
        own = list(layout.layers(layers, stage, chunk))
        assert {layout.stage_of_layer(layers, layer) for layer in own} == {stage}
        assert all(isinstance(layout.stage_of_layer(layers, layer), int) for layer in own)
        assert chunk or list(layout.layers(layers, stage)) == list(own)  # the first chunk by default
        seen += own
    assert sorted(seen) == list(range(1, layers + 1))


def test_interleaved_chunks_go_round_the_stages() -> None:
    layout = Layout(pp=2, vpp=2)
    held = {(stage, chunk): list(layout.layers(8, stage, chunk)) for stage in range(2) for chunk in range(2)}
    assert held == {(0, 0): [1, 2], (1, 0): [3, 4], (0, 1): [5, 6], (1, 1): [7, 8]}


@pytest.mark.parametrize(
    ("layout", "alignment"),
    [
        # The worked examples of Megatron-Bridge's packing guide: TP4/CP1/SP, TP1/CP2 and TP2/CP2/SP all give 4.
        (Layout(tp=4, sp=True), 4),
        (Layout(cp=2), 4),
        (Layout(tp=2, cp=2, sp=True), 4),
        (Layout(tp=4, cp=2, sp=True), 8),
        (Layout(tp=3, cp=2, sp=True), 12),
        (Layout(tp=4), 1),
        (Layout(), 1),
    ],
)
def test_alignment_is_the_least_common_multiple_of_both_needs(layout: Layout, alignment: int) -> None:
    assert layout.alignment == alignment


@given(layout=LAYOUTS)
def test_an_aligned_length_can_be_cut_over_cp_and_tp(layout: Layout) -> None:
    length = layout.alignment * 5
    assert layout.cp == 1 or length % (2 * layout.cp) == 0
    assert not layout.sp or layout.tp == 1 or (length // layout.cp) % layout.tp == 0
    assert layout.alignment <= 2 * layout.cp * layout.tp


def test_weights_of_experts_are_split_over_the_fastest_ranks_of_a_stage() -> None:
    layout = Layout(tp=2, dp=2, pp=2, etp=4)
    shards = [layout.expert_shard(layout.coordinates(rank)) for rank in range(8)]
    assert shards == [0, 1, 2, 3, 0, 1, 2, 3]
    whole = Layout(tp=2, etp=1)
    assert [whole.expert_shard(whole.coordinates(rank)) for rank in range(2)] == [0, 0]


@pytest.mark.parametrize("layout", [Layout(tp=2), Layout(tp=2, etp=2)])
def test_experts_are_split_over_tp_unless_another_size_is_asked_for(layout: Layout) -> None:
    assert layout.expert_tp == 2
    assert layout.expert_shard(layout.coordinates(1)) is None
