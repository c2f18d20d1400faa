"""Recurrent layers against classes of the package transformers with the same weights: outputs, gradients to 1e-10."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor

from harness.oracle.fields import DeltaNet, Mamba, Model
from harness.oracle.recurrent import convolved, delta_net, mamba
from harness.oracle.weights import initial_weights
from tests.oracle.hugging_face import in_float64, module_of
from tests.oracle.streams import stream

WITHIN = 1e-10
SEGMENTS = (9, 1, 14)
DELTA = DeltaNet(heads=4, value=6, key_heads=2, key=8, taps=4)
MAMBA = Mamba(heads=4, size=6, groups=2, state=5)
MODEL = Model(layers=2, hidden=16, vocab=32, heads=4, groups=2, head=4, ffn=8, pattern="GM", delta=DELTA, mamba=MAMBA)


def weights_of(at: str) -> dict[str, Tensor]:
    """Leaf tensors below a name, large enough that all parts of a layer matter."""
    drawn = initial_weights(MODEL, 5, torch.float64)
    return {
        name: (weight * (20.0 if weight.dim() > 1 else 0.5)).detach().requires_grad_()
        for name, weight in drawn.items()
        if name.startswith(at)
    }


def delta_names(weights: Mapping[str, Tensor], at: str) -> dict[str, Tensor]:
    """Under the names of Qwen3NextGatedDeltaNet, whose projections are stacked by head of keys."""
    keys, values, heads = DELTA.key_heads * DELTA.key, DELTA.heads * DELTA.value, DELTA.heads
    parts = torch.split(weights[f"{at}.in_proj.weight"], [keys, keys, values, values, heads, heads])
    by_head = [part.view(DELTA.key_heads, -1, MODEL.hidden) for part in parts]
    same = ("conv1d.weight", "dt_bias", "A_log", "out_proj.weight")
    return {name: weights[f"{at}.{name}"] for name in same} | {
        "in_proj_qkvz.weight": torch.cat(by_head[:4], 1).flatten(0, 1),
        "in_proj_ba.weight": torch.cat(by_head[4:], 1).flatten(0, 1),
        "norm.weight": weights[f"{at}.out_norm.weight"],
    }


def mamba_names(weights: Mapping[str, Tensor], at: str) -> dict[str, Tensor]:
    """Under the names of NemotronHMamba2Mixer."""
    own = {name.removeprefix(f"{at}."): weight for name, weight in weights.items()}
    return {name.replace("conv1d_", "conv1d."): weight for name, weight in own.items()}


def qwen3_next() -> Any:
    config = transformers.Qwen3NextConfig(
        hidden_size=MODEL.hidden,
        num_hidden_layers=1,
        layer_types=["linear_attention"],
        linear_conv_kernel_dim=DELTA.taps,
        linear_num_value_heads=DELTA.heads,
        linear_value_head_dim=DELTA.value,
        linear_num_key_heads=DELTA.key_heads,
        linear_key_head_dim=DELTA.key,
        rms_norm_eps=MODEL.epsilon,
    )
    return module_of("qwen3_next").Qwen3NextGatedDeltaNet(config, 0)


def nemotron_h() -> Any:
    config = transformers.NemotronHConfig(
        hidden_size=MODEL.hidden,
        layers_block_type=["mamba"],
        mamba_num_heads=MAMBA.heads,
        mamba_head_dim=MAMBA.size,
        n_groups=MAMBA.groups,
        ssm_state_size=MAMBA.state,
        conv_kernel=MAMBA.taps,
        time_step_min=0.0,
        layer_norm_epsilon=1e-5,
        chunk_size=8,
    )
    return module_of("nemotron_h").NemotronHMamba2Mixer(config, 0)


def assert_near(ours: Tensor, theirs: Tensor) -> None:
    assert float(theirs.abs().max()) > 0
    assert float((ours - theirs).abs().max()) < WITHIN * float(theirs.abs().max())


@pytest.mark.parametrize(
    ("kind", "made", "at", "names"),
    [
        ("qwen3_next", qwen3_next, "decoder.layers.0.self_attention", delta_names),
        ("nemotron_h", nemotron_h, "decoder.layers.1.mixer", mamba_names),
    ],
)
def test_outputs_and_gradients_agree_segment_by_segment(kind: str, made: Any, at: str, names: Any) -> None:
    generator = torch.Generator().manual_seed(7)
    x, toward = torch.randn(2, sum(SEGMENTS), MODEL.hidden, generator=generator, dtype=torch.float64)
    weights = weights_of(at)
    rows = stream(MODEL.vocab, SEGMENTS)
    if kind == "qwen3_next":
        ours = delta_net(x, weights, at, MODEL, DELTA, rows)
    else:
        ours = mamba(x, weights, at, MODEL, MAMBA, rows)
    with in_float64(module_of(kind)):
        theirs = made().double()
        given = names(weights, at)
        assert given.keys() == dict(theirs.named_parameters()).keys()
        parts = [torch.func.functional_call(theirs, given, part[None])[0] for part in torch.split(x, list(SEGMENTS))]
    right = torch.cat(parts)
    assert_near(ours.detach(), right.detach())
    own, other = (torch.autograd.grad((out * toward).sum(), list(weights.values())) for out in (ours, right))
    for one, two in zip(own, other):
        assert_near(one, two)


def test_layers_of_a_bf16_model_take_and_return_bf16() -> None:
    x, rows = torch.ones(sum(SEGMENTS), MODEL.hidden, dtype=torch.bfloat16), stream(MODEL.vocab, SEGMENTS)
    weights = initial_weights(MODEL, 5, torch.bfloat16)
    assert delta_net(x, weights, "decoder.layers.0.self_attention", MODEL, DELTA, rows).dtype == torch.bfloat16
    assert mamba(x, weights, "decoder.layers.1.mixer", MODEL, MAMBA, rows).dtype == torch.bfloat16
    mixed = convolved(x, weights["decoder.layers.0.self_attention.conv1d.weight"][: MODEL.hidden], None, SEGMENTS)
    assert mixed.dtype == torch.bfloat16
