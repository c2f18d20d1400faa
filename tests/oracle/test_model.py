"""How layers follow one another: what each is given, and what a slot depends on."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from torch import Tensor

from harness.oracle.choices import Choice
from harness.oracle.fields import DeltaNet, Experts, Latent, Mamba, Model, Rotary
from harness.oracle.layers import Noted
from harness.oracle.model import Forward, forward
from harness.oracle.weights import initial_weights
from tests.oracle.streams import stream

TINY = Model(layers=2, hidden=4, vocab=11, heads=2, groups=1, head=2, ffn=3)
LATENT = Latent(query_rank=3, rank=3, still=2, turned=2, value=2, scale=0.5, rotary=Rotary(pairs_in=True))
ROUTED = Experts(count=3, chosen=1, ffn=2)
SEGMENTS = (4, 3)


def run(model: Model, tokens: Tensor | None = None, choices: dict[int, Choice] | None = None) -> Forward:
    """With weights large enough that every part matters."""
    weights = {name: 6 * weight.detach() for name, weight in initial_weights(model, 3, torch.float64).items()}
    rows = stream(model.vocab, SEGMENTS)
    rows = rows if tokens is None else replace(rows, tokens=tokens)
    zeros = {number: torch.zeros(3, dtype=torch.float64) for number in range(1, 6)}
    return forward(weights, model, rows, zeros, choices)


def with_another(slot: int) -> Tensor:
    tokens = stream(TINY.vocab, SEGMENTS).tokens.clone()
    tokens[slot] = (tokens[slot] + 1) % TINY.vocab
    return tokens


def moved(one: Tensor, other: Tensor) -> list[int]:
    """The slots whose rows differ."""
    return [slot for slot, (a, b) in enumerate(zip(one, other)) if not torch.allclose(a, b, rtol=1e-9, atol=0)]


def test_layers_receive_and_return_the_outputs_that_are_kept(noted: dict[Noted, tuple[Tensor, ...]]) -> None:
    outputs = run(TINY).outputs
    assert torch.equal(noted["embedding", "returns"][0], outputs[0])
    for number, (given, made) in enumerate(pairwise(outputs)):
        at = f"decoder.layers.{number}"
        assert torch.equal(noted[at, "receives"][0], given) and torch.equal(noted[at, "returns"][0], made)


def test_a_slot_sees_its_document_up_to_itself() -> None:
    plain = run(TINY)
    assert moved(plain.logits, run(TINY, with_another(1)).logits) == [1, 2, 3]
    assert moved(plain.logits, run(TINY, with_another(4)).logits) == [4, 5, 6]


def test_prediction_layers_see_as_many_tokens_further() -> None:
    """Inside the document; the second one by the first."""
    model = replace(TINY, predictions=2)
    plain, other = run(model), run(model, with_another(2))
    assert moved(plain.logits, other.logits) == [2, 3]
    first, second = zip(plain.predictions, other.predictions, strict=True)
    assert moved(*first) == [1, 2, 3]
    assert moved(*second) == [0, 1, 2, 3]


def test_routers_of_prediction_layers_come_after_the_others() -> None:
    model = replace(TINY, predictions=2, experts=ROUTED)
    assert [routed.layer for routed in run(model).routed] == [1, 2, 3, 4]


def test_each_layer_follows_the_choice_of_its_number() -> None:
    model = replace(TINY, predictions=1, experts=ROUTED)
    choices = {number: Choice(torch.full((7, 1), number % 3), None) for number in (1, 2, 3)}
    for routed in run(model, choices=choices).routed:
        assert routed.chosen.nonzero()[:, 1].unique().tolist() == [routed.layer % 3]
    del choices[2]
    own, followed = run(model).routed[1], run(model, choices=choices).routed[1]
    assert torch.equal(own.chosen, own.preferred) and torch.equal(followed.chosen, followed.preferred)


@pytest.mark.parametrize("latent", [None, LATENT], ids=["grouped", "latent"])
def test_windows_are_of_the_layers_that_do_not_skip_them(latent: Latent | None) -> None:
    """In a window of one token a slot sees itself; the second layer, and any after it, has none."""
    model = replace(TINY, window=(0, 0), window_skip=2, latent=latent)
    plain, other = run(model).outputs, run(model, with_another(0)).outputs
    assert moved(plain[1], other[1]) == [0]
    assert moved(plain[2], other[2]) == [0, 1, 2, 3]


def test_each_letter_of_a_pattern_is_a_layer_of_its_own(noted: dict[Noted, tuple[Tensor, ...]]) -> None:
    delta = DeltaNet(heads=2, value=2, key_heads=1, key=2, taps=2)
    mamba = Mamba(heads=2, size=2, groups=1, state=2)
    run(replace(TINY, layers=5, pattern="*GM-E", experts=ROUTED, delta=delta, mamba=mamba))
    inside: list[set[str]] = [set() for _ in range(5)]
    for at, _ in noted:
        if at.count(".") > 2 and ".experts." not in at:
            *_, number, module = at.split(".", 3)
            inside[int(number)].add(module)
    mixer = "self_attention"
    assert inside == [
        {"input_layernorm", f"{mixer}.linear_qkv", f"{mixer}.core_attention", f"{mixer}.linear_proj"},
        {"input_layernorm", f"{mixer}.in_proj", f"{mixer}.out_norm", f"{mixer}.out_proj"},
        {"norm", "mixer.in_proj", "mixer.out_proj"},
        {"pre_mlp_layernorm", "mlp.linear_fc1", "mlp.linear_fc2"},
        {"pre_mlp_layernorm"},
    ]
