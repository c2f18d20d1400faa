from __future__ import annotations

import pytest

from harness.core.cell.layout import Layout
from harness.core.cell.model import ModelConfig
from harness.features.hybrid.pattern import MIXERS, checked_pattern, layers_of, pattern_name


def test_cuts_are_no_layers() -> None:
    assert layers_of("G-|*E|M") == "G-*EM"


@pytest.mark.parametrize(
    ("pattern", "message"), [("*-X", "'X' is not a layer"), ("*-||*", "without one"), ("|*", "without")]
)
def test_other_letters_and_empty_stages_are_refused(pattern: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        checked_pattern(pattern)


def test_names_are_file_names_that_differ() -> None:
    patterns = ["*-*-", "*-|*-", "G-*-", "M-*E"]
    assert [pattern_name(pattern) for pattern in patterns] == [
        "hybrid-afaf",
        "hybrid-af_af",
        "hybrid-gfaf",
        "hybrid-mfae",
    ]
    assert pattern_name("") == "gpt"


def test_cuts_say_which_stage_has_a_layer() -> None:
    model, layout = ModelConfig(layers=5, pattern="G|-*|M|-"), Layout(pp=2, vpp=2)
    chunks = {(stage, chunk): list(layout.layers(model.spread, stage, chunk)) for stage in (0, 1) for chunk in (0, 1)}
    assert chunks == {(0, 0): [1], (1, 0): [2, 3], (0, 1): [4], (1, 1): [5]}
    assert [layout.stage_of_layer(model.spread, layer) for layer in range(1, 6)] == [0, 1, 1, 0, 1]
    assert list(Layout().layers(model.spread, 0)) == [1, 2, 3, 4, 5]


def test_a_model_without_pattern_has_every_letter_in_every_layer() -> None:
    assert ModelConfig(layers=2).numbers_of(MIXERS) == [1, 2]
    assert ModelConfig(layers=4, pattern="G-*|-").numbers_of(MIXERS) == [1, 3]
