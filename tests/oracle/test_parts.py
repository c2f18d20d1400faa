"""Parts of the model against torch's, by hand, and their derivatives by torch.autograd.gradcheck."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from harness.features.adapters.config import CANONICAL, DORA, PeftConfig
from harness.oracle.attention import attend, frequencies, rotate
from harness.oracle.experts import balance_loss, moved_bias, route, z_loss
from harness.oracle.fields import DeltaNet, Experts, Latent, Mamba, Model, Rotary, Yarn
from harness.oracle.layers import activation, feed_forward, norm
from harness.oracle.loss import Divisors, micro_loss, share_of_step
from harness.oracle.model import forward
from harness.oracle.weights import initial_weights, shapes
from tests.oracle.streams import stream

TINY = Model(layers=1, hidden=4, vocab=5, heads=2, groups=1, head=2, ffn=3)
LATENT = Latent(query_rank=3, rank=3, still=2, turned=2, value=2, scale=0.5, rotary=Rotary(pairs_in=True))
ROUTED = Experts(count=3, chosen=2, ffn=2, balance="aux_loss", balance_weight=0.5, z_weight=0.1)


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize(
    "model",
    [
        TINY,
        replace(TINY, normalization="LayerNorm", bias=True, qkv_bias=True, gated=False, activation="gelu", tied=True),
        replace(TINY, activation="quick_gelu", glu_offset=1.0, clamp=0.5, centered_gamma=True, rotary=None),
        replace(TINY, qk_norm=True, window=(1, 0), softmax="learnable", softmax_scale=0.3),
        replace(TINY, experts=ROUTED),
        replace(TINY, experts=replace(ROUTED, score="sigmoid", balance="seq_aux_loss", shared=2, shared_gate=True)),
        replace(TINY, experts=replace(ROUTED, balance="global_aux_loss", before=True, factor=2.0)),
        replace(TINY, latent=LATENT, qk_norm=True),
        replace(TINY, predictions=2, prediction_weight=0.3),
        replace(TINY, adapters=PeftConfig(rank=2, alpha=6)),
        replace(TINY, adapters=PeftConfig(method=CANONICAL, rank=2, alpha=6)),
        replace(TINY, layers=2, pattern="G-", delta=DeltaNet(heads=2, value=2, key_heads=1, key=2, taps=2)),
        replace(TINY, layers=3, pattern="M*E", experts=ROUTED, mamba=Mamba(heads=2, size=2, groups=1, state=2)),
    ],
)
@pytest.mark.parametrize("per_token", [True, False])
def test_gradients_are_those_of_differences(model: Model, per_token: bool) -> None:
    """Of the loss of a step, with respect to every weight."""
    rows, model = stream(model.vocab, (3, 2)), replace(model, per_token=per_token)
    weights = initial_weights(model, 3, torch.float64)
    names = list(weights)
    values = [(weight * (20.0 if weight.dim() > 1 else 1.0)).detach().requires_grad_() for weight in weights.values()]
    zeros = {number: torch.zeros(3, dtype=torch.float64) for number in range(1, 4)}

    def loss(*given: Tensor) -> Tensor:
        seen = forward(dict(zip(names, given)), model, rows, zeros)
        part = micro_loss(seen, rows, model, 0.1, [(rows, seen)], [[] for _ in seen.routed])
        return share_of_step(part, rows, model, Divisors(labels=7, counted=9, micro_batches=2))

    assert torch.autograd.gradcheck(loss, values, eps=1e-6, atol=1e-7, rtol=1e-6, fast_mode=True)


def test_adapters_are_products_added_to_the_weights_of_their_layers() -> None:
    model, rows = replace(TINY, adapters=PeftConfig(rank=2, alpha=6)), stream(TINY.vocab, (3, 2))
    weights = {name: 20 * weight.detach() for name, weight in initial_weights(model, 3, torch.float64).items()}
    merged = {
        name: weight + 3 * weights[f"{layer}.linear_out.weight"] @ weights[f"{layer}.linear_in.weight"]
        if f"{(layer := name.removesuffix('weight') + 'adapter')}.linear_in.weight" in weights
        else weight
        for name, weight in weights.items()
    }
    adapted = sorted(name for name in weights if not merged[name].equal(weights[name]))
    assert [name.split(".")[-2] for name in adapted] == ["linear_fc1", "linear_fc2", "linear_proj", "linear_qkv"]
    seen, right = forward(weights, model, rows, {}).logits, forward(merged, TINY, rows, {}).logits
    torch.testing.assert_close(seen, right)
    assert not torch.allclose(seen, forward(weights, TINY, rows, {}).logits)


def of_layers(model: Model) -> tuple[dict[str, Tensor], Tensor, list[str]]:
    """Weights, logits for one row, and the layers that have adapters."""
    weights = {name: 20 * weight.detach() for name, weight in initial_weights(model, 3, torch.float64).items()}
    layers = [name.removesuffix(".weight") for name in weights if model.adapters and model.adapters.adapts(name)]
    return weights, forward(weights, model, stream(TINY.vocab, (3, 2)), {}).logits, layers


def test_dora_gives_rows_of_the_sum_a_norm_of_their_own() -> None:
    weights, seen, layers = of_layers(replace(TINY, adapters=PeftConfig(method=DORA, rank=2, alpha=6)))
    merged = dict(weights)
    for at in layers:
        total = weights[f"{at}.weight"] + 3 * (
            weights[f"{at}.adapter.linear_out.weight"] @ weights[f"{at}.adapter.linear_in.weight"]
        )
        merged[f"{at}.weight"] = F.normalize(total, dim=1) * weights[f"{at}.adapter.weight_magnitude"][:, None]
    torch.testing.assert_close(seen, forward(merged, TINY, stream(TINY.vocab, (3, 2)), {}).logits)


def test_canonical_lora_has_factors_for_queries_keys_values_gate_and_up() -> None:
    model = replace(TINY, heads=4, groups=2)
    weights, seen, layers = of_layers(replace(model, adapters=PeftConfig(method=CANONICAL, rank=2, alpha=6)))
    merged = dict(weights)
    for at in layers:
        held = {
            part: 3 * weights[f"{at}.{part}.linear_out.weight"] @ weights[f"{at}.{part}.linear_in.weight"]
            for part in ("adapter", *(f"adapter.adapter_{kind}" for kind in ("q", "k", "v", "gate", "up")))
            if f"{at}.{part}.linear_in.weight" in weights
        }
        if at.endswith("linear_qkv"):  # two groups, each with the rows of two query heads, a key and a value
            q, k, v = (held[f"adapter.adapter_{kind}"] for kind in "qkv")
            change = torch.cat([q[:4], k[:2], v[:2], q[4:], k[2:], v[2:]])
        elif at.endswith("linear_fc1"):
            change = torch.cat([held["adapter.adapter_gate"], held["adapter.adapter_up"]])
        else:
            change = held["adapter"]
        merged[f"{at}.weight"] = weights[f"{at}.weight"] + change
    torch.testing.assert_close(seen, forward(merged, model, stream(TINY.vocab, (3, 2)), {}).logits)


def test_norms_are_those_of_torch() -> None:
    x, weight, bias = drawn(5, 7), drawn(7, seed=1), drawn(7, seed=2)
    named = {"n.weight": weight, "n.bias": bias}
    own = norm(x, named, "n", replace(TINY, epsilon=1e-3))
    torch.testing.assert_close(own, F.rms_norm(x, (7,), weight, 1e-3), rtol=1e-13, atol=1e-14)
    layered = norm(x, named, "n", replace(TINY, epsilon=1e-3, normalization="LayerNorm"))
    torch.testing.assert_close(layered, F.layer_norm(x, (7,), weight, bias, 1e-3), rtol=1e-13, atol=1e-14)
    centered = norm(x, named, "n", replace(TINY, epsilon=1e-3, centered_gamma=True))
    torch.testing.assert_close(centered, F.rms_norm(x, (7,), weight + 1, 1e-3), rtol=1e-13, atol=1e-14)


@pytest.mark.parametrize(
    ("name", "right"),
    [
        ("silu", F.silu),
        ("gelu", F.gelu),
        ("relu", F.relu),
        ("squared_relu", lambda x: F.relu(x) ** 2),
        ("quick_gelu", lambda x: x * torch.sigmoid(1.702 * x)),
    ],
)
def test_activations_are_those_of_torch(name: str, right) -> None:
    x = drawn(100) * 3
    torch.testing.assert_close(activation(x, replace(TINY, activation=name)), right(x), rtol=1e-13, atol=1e-14)


def test_a_fused_gelu_is_the_approximation_by_tanh() -> None:
    x = drawn(100) * 3
    own = activation(x, replace(TINY, activation="gelu", approximate=True))
    torch.testing.assert_close(own, F.gelu(x, approximate="tanh"), rtol=1e-12, atol=1e-14)


def test_the_first_half_of_a_gated_block_is_the_gate_and_both_are_clamped() -> None:
    x, up, down = drawn(5, 4), drawn(6, 4, seed=1), drawn(4, 3, seed=2)
    model = replace(TINY, glu_offset=1.0, clamp=0.7)
    gate, rest = x @ up[:3].T, x @ up[3:].T
    right = (F.silu(gate.clamp(max=0.7)) * (rest.clamp(-0.7, 0.7) + 1.0)) @ down.T
    own = feed_forward(x, {"m.linear_fc1.weight": up, "m.linear_fc2.weight": down}, "m", model)
    torch.testing.assert_close(own, right)


def test_attention_is_that_of_torch_document_by_document() -> None:
    query, key, value = drawn(9, 4, 6), drawn(9, 2, 6, seed=1), drawn(9, 2, 5, seed=2)
    own = attend(query, key, value, (4, 5), scale=0.3)
    for part in (slice(0, 4), slice(4, 9)):
        heads = [one[part].transpose(0, 1) for one in (query, key, value)]
        right = F.scaled_dot_product_attention(*heads, is_causal=True, scale=0.3, enable_gqa=True)
        torch.testing.assert_close(own[part], right.transpose(0, 1).flatten(1), rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("sink", [None, 0.0, 0.8])
def test_windows_and_sinks_weight_as_by_hand(sink: float | None) -> None:
    query, key, value = drawn(4, 1, 3), drawn(4, 1, 3, seed=1), drawn(4, 1, 3, seed=2)
    given = None if sink is None else torch.tensor([sink], dtype=torch.float64)
    own = attend(query, key, value, (4,), scale=1.0, window=(1, 0), sink=given)
    for token in range(4):
        seen = [other for other in range(4) if token - 1 <= other <= token]
        powers = torch.stack([(query[token, 0] @ key[other, 0]).exp() for other in seen])
        rest = 0.0 if sink is None else torch.tensor(sink, dtype=torch.float64).exp()
        right = sum(power * value[other, 0] for power, other in zip(powers, seen)) / (powers.sum() + rest)
        torch.testing.assert_close(own[token], right)


@pytest.mark.parametrize("interleaved", [False, True])
def test_positions_turn_pairs_as_complex_numbers_do(interleaved: bool) -> None:
    """And leave the rest of the head, beyond `percent`, as it is."""
    rotary = Rotary(base=100, percent=0.5, interleaved=interleaved, interpolation=2.0)
    x, positions = drawn(5, 2, 8), torch.tensor([0, 1, 2, 0, 7])
    own = rotate(x, positions, rotary)
    turned = x[..., :4]
    pairs = turned.unflatten(-1, (2, 2)) if interleaved else turned.unflatten(-1, (2, 2)).transpose(-1, -2)
    angles = positions[:, None] / 2.0 * torch.tensor([1.0, 100**-0.5], dtype=torch.float64)
    right = torch.view_as_complex(pairs.contiguous()) * torch.polar(torch.ones_like(angles), angles)[:, None]
    found = torch.view_as_real(right)
    right = found.flatten(-2) if interleaved else found.transpose(-1, -2).flatten(-2)
    torch.testing.assert_close(own[..., :4], right)
    assert torch.equal(own[..., 4:], x[..., 4:])


def test_products_of_turned_vectors_depend_on_distances_alone() -> None:
    rotary = Rotary(base=50, llama_factor=4.0)
    query, key = drawn(1, 1, 6), drawn(1, 1, 6, seed=1)

    def product(one: int, other: int) -> Tensor:
        turned = [rotate(x, torch.tensor([at]), rotary) for x, at in ((query, one), (key, other))]
        return (turned[0] * turned[1]).sum()

    torch.testing.assert_close(product(9, 4), product(25, 20))
    assert not torch.allclose(product(9, 4), product(9, 5))


def test_yarn_keeps_fast_frequencies_and_divides_slow_ones() -> None:
    yarn = Yarn(factor=8.0, context=64, fast=16.0, slow=1.0, mscale=1.0, mscale_all=0.0)
    plain = frequencies(Rotary(base=10_000), 32, torch.float64)
    stretched = frequencies(Rotary(base=10_000, yarn=yarn), 32, torch.float64)
    assert stretched[0] == plain[0]
    torch.testing.assert_close(stretched[-1], plain[-1] / 8)
    assert Rotary(yarn=yarn).amplitude == yarn.temperature(1.0) > 1.0


def routing(experts: Experts, slots: int = 8, seed: int = 0, bias: Tensor | None = None):
    bias = torch.zeros(experts.count, dtype=torch.float64) if bias is None else bias
    return route(drawn(slots, experts.count, seed=seed), bias, 1, experts, stream(5, (slots,)))


@pytest.mark.parametrize("drop", ["probs", "position"])
@pytest.mark.parametrize("filled", [False, True])
def test_experts_take_as_many_slots_as_their_capacity_in_order(drop: str, filled: bool) -> None:
    experts = Experts(count=4, chosen=2, ffn=1, capacity=0.5, drop=drop, filled=filled)
    routed = routing(experts)
    capacity = 2  # of 8 slots * 2 / 4 experts, half
    free = routing(replace(experts, capacity=None))
    for expert in range(4):
        wanted = free.chosen[:, expert].nonzero().flatten().tolist()
        if drop == "probs":
            wanted.sort(key=lambda slot: -float(free.weights[slot, expert]))
        kept = wanted[:capacity]
        assert routed.weights[:, expert].nonzero().flatten().tolist() == sorted(kept)
        assert int(routed.taken[:, expert].sum()) == (capacity if filled else len(kept))


def test_a_capacity_is_per_rank() -> None:
    experts = Experts(count=2, chosen=1, ffn=1, capacity=0.5)
    rows = replace(stream(5, (8,)), shares=(torch.arange(0, 8, 2), torch.arange(1, 8, 2)))
    logits = torch.tensor([[1.0, 0.0]], dtype=torch.float64).repeat(8, 1) + drawn(8, 2) * 0.01
    routed = route(logits, torch.zeros(2, dtype=torch.float64), 1, experts, rows)
    assert [int(routed.taken[share, 0].sum()) for share in rows.shares] == [1, 1]


def test_a_bias_changes_the_choice_and_not_the_weights() -> None:
    experts = Experts(count=4, chosen=1, ffn=1, score="sigmoid", biased=True)
    bias = torch.tensor([0.0, 0.0, 0.0, 5.0], dtype=torch.float64)
    routed = routing(experts, bias=bias)
    assert routed.chosen[:, 3].all()
    torch.testing.assert_close(routed.weights[:, 3], routed.logits[:, 3].sigmoid())
    torch.testing.assert_close(
        moved_bias(bias, torch.tensor([1.0, 3.0, 2.0, 2.0]), 0.1),
        torch.tensor([0.1, -0.1, 0.0, 5.0], dtype=torch.float64),
    )


def test_losses_of_routers_are_as_by_hand() -> None:
    one, other = routing(ROUTED), routing(ROUTED, slots=4, seed=1)

    def by_hand(counts: Tensor, scores: Tensor, slots: float) -> Tensor:
        return 0.5 * 3 / (2 * slots**2) * (counts * scores.sum(0)).sum()

    counts = [routed.preferred.sum(0).double() for routed in (one, other)]
    torch.testing.assert_close(balance_loss(one, [one], [], ROUTED), by_hand(counts[0], one.scores, 8))
    rows = replace(one, rows=(6, 2))
    parts = [slice(0, 6), slice(6, 8)]
    right = sum(by_hand(one.preferred[part].sum(0), one.scores[part], 4) for part in parts) / 2
    torch.testing.assert_close(balance_loss(rows, [rows], [], replace(ROUTED, balance="seq_aux_loss")), right)
    everywhere = replace(ROUTED, balance="global_aux_loss")
    right = by_hand((counts[0] + counts[1] + 7.0) / 2, one.scores, 12)
    torch.testing.assert_close(balance_loss(one, [one, other], [torch.full((3,), 7.0).double()], everywhere), right)
    torch.testing.assert_close(z_loss(one, ROUTED), 0.1 * one.logits.logsumexp(-1).square().mean())


def test_slots_that_are_not_counted_enter_no_loss_of_a_router() -> None:
    rows = stream(5, (8,))
    counted = torch.arange(8) < 5
    logits, zeros = drawn(8, 3), torch.zeros(3, dtype=torch.float64)
    masked = route(logits, zeros, 1, ROUTED, replace(rows, counted=counted))
    short = route(logits[:5], zeros, 1, ROUTED, stream(5, (5,)))
    torch.testing.assert_close(balance_loss(masked, [masked], [], ROUTED), balance_loss(short, [short], [], ROUTED))
    torch.testing.assert_close(z_loss(masked, ROUTED), z_loss(short, ROUTED))


def test_prediction_layers_see_the_tokens_ahead_inside_documents() -> None:
    rows = stream(9, (4, 3))
    assert rows.shifted(rows.tokens).tolist() == [*rows.tokens[1:4].tolist(), 0, *rows.tokens[5:].tolist(), 0]


def test_weights_of_a_bf16_model_are_rounded_as_ranks_store_them() -> None:
    weights = initial_weights(replace(TINY, stored=torch.bfloat16), 0, torch.float64)
    assert all(torch.equal(weight, weight.to(torch.bfloat16).double()) for weight in weights.values())
    assert weights.keys() == shapes(TINY).keys()
