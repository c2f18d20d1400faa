"""Attention layers of a model: what they hand to the arithmetic of attention, and angles of positions."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from harness.oracle.attention import angles, attend, frequencies, rotate
from harness.oracle.fields import Latent, Model, Rotary
from harness.oracle.layers import Noted
from harness.oracle.model import forward
from harness.oracle.weights import initial_weights
from tests.oracle.streams import stream

TINY = Model(layers=2, hidden=4, vocab=5, heads=2, groups=1, head=2, ffn=3)
LATENT = Latent(query_rank=3, rank=3, still=2, turned=2, value=2, scale=0.5, rotary=Rotary(pairs_in=True))
OF_LAYER = "decoder.layers.{}.self_attention.core_attention"
SEGMENTS = (4, 3)


def run(model: Model) -> dict[str, Tensor]:
    """A forward of two documents with weights large enough that every part matters; returns the weights."""
    weights = {name: 6 * weight.detach() for name, weight in initial_weights(model, 3, torch.float64).items()}
    forward(weights, model, stream(model.vocab, SEGMENTS), {})
    return weights


@pytest.mark.parametrize(
    ("options", "windows"),
    [
        ({}, [None, None]),
        ({"window": (1, 0)}, [(1, 0), (1, 0)]),
        ({"window": (1, 0), "window_skip": 2}, [(1, 0), None]),
        ({"window": (0, 0), "window_skip": [0, 1]}, [None, (0, 0)]),
        ({"window": (-1, 0)}, [None, None]),
        ({"softmax": "learnable"}, [None, None]),
        ({"softmax": "off-by-one"}, [None, None]),
    ],
)
def test_layers_attend_with_their_window_and_sinks(
    noted: dict[Noted, tuple[Tensor, ...]], options: dict[str, object], windows: list[tuple[int, int] | None]
) -> None:
    weights = run(replace(TINY, **options))  # type: ignore[arg-type]
    for number, window in enumerate(windows):
        at = OF_LAYER.format(number)
        sink = weights.get(f"{at}.softmax_offset")
        if options.get("softmax") == "off-by-one":
            sink = torch.zeros(2, dtype=torch.float64)
        assert (sink is None) == ("softmax" not in options)
        right = attend(*noted[at, "receives"], SEGMENTS, scale=2**-0.5, window=window, sink=sink)
        torch.testing.assert_close(noted[at, "returns"][0], right)


@pytest.mark.parametrize(
    "options", [{"window": (1, 0), "window_skip": 2}, {"softmax": "learnable"}, {"softmax": "off-by-one"}]
)
def test_latent_layers_have_windows_and_sinks_too(
    noted: dict[Noted, tuple[Tensor, ...]], options: dict[str, object]
) -> None:
    """The first slot of a document sees one key, so that without a sink it returns its value whole."""
    model = replace(TINY, latent=LATENT)
    weights = run(replace(model, **options))  # type: ignore[arg-type]
    found = [noted[OF_LAYER.format(number), "returns"][0].unflatten(1, (2, 2)) for number in range(2)]
    noted.clear()
    given = {name: weight for name, weight in weights.items() if "softmax_offset" not in name}
    forward(given, model, stream(model.vocab, SEGMENTS), {})
    plain = noted[OF_LAYER.format(0), "returns"][0].unflatten(1, (2, 2))
    same = [bool(torch.allclose(one, other)) for one, other in zip(found[0], plain)]
    if "window" in options:  # in the first layer only; two slots see as much as without it
        assert same == [True, True, False, False, True, True, False]
        at = "decoder.layers.1.self_attention"
        again = replace(model, window=(1, 0))
        noted.clear()
        forward(weights, again, stream(model.vocab, SEGMENTS), {})
        assert not torch.allclose(noted[f"{at}.core_attention", "returns"][0].unflatten(1, (2, 2)), found[1])
        return
    ratio = found[0][0] / plain[0]
    assert ((ratio > 0) & (ratio < 1)).all()
    torch.testing.assert_close(ratio[:, 0], ratio[:, 1])
    assert not any(same)


def test_in_a_window_of_one_token_each_returns_its_own_value() -> None:
    query, key, value = torch.randn(3, 7, 2, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    torch.testing.assert_close(attend(query, key, value, SEGMENTS, scale=1.0, window=(0, 0)), value.flatten(1))


def test_a_part_of_a_head_turns_in_whole_pairs() -> None:
    assert len(frequencies(Rotary(percent=0.5), 8, torch.float64)) == 2
    assert len(frequencies(Rotary(percent=1.0), 7, torch.float64)) == 4
    torch.testing.assert_close(frequencies(Rotary(percent=0.5), 8, torch.float64)[1], drawn_power(10_000, -1 / 2))


def drawn_power(base: float, exponent: float) -> Tensor:
    return torch.tensor(base, dtype=torch.float64) ** exponent


def test_each_frequency_follows_the_axis_whose_section_it_is_in() -> None:
    """Time, height and width have 3, 2 and 1 of six frequencies: 0, 1, 2, 0, 1 and time."""
    rotary, positions = Rotary(sections=(3, 2, 1)), torch.tensor([[1, 10, 100]])
    turns = frequencies(rotary, 12, torch.float64)
    right = torch.tensor([1.0, 10, 100, 1, 10, 1], dtype=torch.float64) * turns
    torch.testing.assert_close(angles(positions, rotary, 12, torch.float64)[0], right)


def test_angles_of_a_bf16_model_are_float32_and_its_heads_stay_bf16() -> None:
    x, positions = torch.ones(3, 1, 4, dtype=torch.bfloat16), torch.tensor([0, 300, 70_001])
    assert rotate(x, positions, Rotary()).dtype == torch.bfloat16
    assert angles(positions, Rotary(), 4, torch.float32)[2, 0] == 70_001.0
