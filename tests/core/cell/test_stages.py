from __future__ import annotations

import pytest

from harness.core.cell.layout import Layout
from harness.core.cell.stages import checked_stages, stages_of


@pytest.mark.parametrize(
    ("text", "chunks"),
    [
        ("Et|tL", ["Et", "tL"]),
        ("Et*3|(tt|)*2m|L", ["Ettt", "tt", "tt", "m", "L"]),
        ("E,t*2|,|t,L", ["Ett", "", "tL"]),
        ("Et(|t)*2,mL", ["Et", "t", "tmL"]),
        ("E|*3tL", ["E", "", "", "tL"]),
    ],
)
def test_letters_are_repeated_and_cut_into_chunks(text: str, chunks: list[str]) -> None:
    assert stages_of(text) == chunks
    assert checked_stages(text) == text


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("Et|xL", "'x' is no part of a model"),
        ("t|tL", "E, the embedding, must be there once, and is there 0 times"),
        ("EtE|tL", "E, the embedding, must be there once, and is there 2 times"),
        ("Et|t", "L, the loss"),
        ("|EttL", "the first chunk must begin with E"),
        ("EtL|", "the last one end with L"),
        ("E|L", "has no layer t"),
        ("Etm|tL", "prediction layers, m, follow the last t"),
        ("Et|m|mL", "all prediction layers, m, are in one chunk"),
        ("Et*4097L", "has more than 4096 parts"),
        ("E(t*100)*100L", "has more than 4096 parts"),
    ],
)
def test_what_no_model_has_is_refused(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        checked_stages(text)


@pytest.mark.parametrize(
    ("layout", "layers", "sizes"),
    [
        (Layout(pp=2), 4, (2, 2)),
        (Layout(pp=2, first_stage_layers=3), 4, (3, 1)),
        (Layout(pp=4, last_stage_layers=1), 7, (2, 2, 2, 1)),
        (Layout(pp=4, first_stage_layers=1, last_stage_layers=3), 8, (1, 2, 2, 3)),
        (Layout(pp=2, first_stage_layers=1, last_stage_layers=3), 4, (1, 3)),
        (Layout(pp=3, vpp=2, first_stage_layers=4, last_stage_layers=2), 12, (2, 3, 1, 2, 3, 1)),
        (Layout(pp=2, embedding_as_layer=True), 3, (1, 2)),
        (Layout(pp=2, vpp=2, embedding_as_layer=True, loss_as_layer=True), 2, (0, 1, 1, 0)),
        (Layout(pp=2, vpp=2, stages="Et|tt||tL"), 4, (1, 2, 0, 1)),
        (Layout(stages="E|tL"), 3, (3,)),
    ],
)
def test_a_layout_says_how_many_layers_each_chunk_has(layout: Layout, layers: int, sizes: tuple[int, ...]) -> None:
    assert layout.chunk_sizes(layers) == sizes


def test_layers_of_empty_chunks_are_in_their_neighbours() -> None:
    layout = Layout(pp=2, vpp=2, stages="E|tt||tL")
    held = {(stage, chunk): [*layout.layers(3, stage, chunk)] for stage in (0, 1) for chunk in (0, 1)}
    assert held == {(0, 0): [], (1, 0): [1, 2], (0, 1): [], (1, 1): [3]}
    assert [layout.stage_of_layer(3, layer) for layer in (1, 2, 3)] == [1, 1, 1]
    assert [layout.chunk_of_layer(3, layer) for layer in (1, 2, 3)] == [1, 1, 3]


def test_prediction_layers_are_where_the_stages_say_or_on_the_last_one() -> None:
    assert Layout(pp=4).prediction_stage == 3
    assert Layout(pp=4, stages="Et|t|m|L").prediction_stage == 2
    assert Layout(pp=3, vpp=2, stages="Et|t|t|t|m|L").prediction_stage == 1
    assert Layout(stages="EtmL").prediction_stage == 0


def test_a_name_says_what_chunks_hold_in_letters_of_a_file_name() -> None:
    assert Layout(pp=4, stages="Et*3|t|m|L").name_parts() == ["tp1", "pp4", "cp1", "stages-3-1-0m-0"]
    assert Layout(pp=2, first_stage_layers=3, loss_as_layer=True).name_parts()[3:] == ["first3", "loss-as-layer"]
