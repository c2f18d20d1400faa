"""The parts that all layers are made of: linear maps, norms and feed-forward blocks.

Weights are looked up by their global name, as Megatron's checkpoints of one rank have it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from harness.oracle.fields import Model


def widened(x: Tensor) -> Tensor:
    """X in float32 at least, in which upstream computes norms, angles, softmax and losses of a bf16 model too."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


def linear(x: Tensor, weights: Mapping[str, Tensor], at: str, model: Model) -> Tensor:
    """X W^T + b: x [..., in], W [out, in]; there is a bias where there is a weight of its name.

    Beside it LoRA adds alpha / r x A^T B^T, A [r, in], B [out, r] (arXiv 2106.09685, section 4.1).
    """
    product = x @ weights[f"{at}.weight"].T
    if f"{at}.bias" in weights:
        product = product + weights[f"{at}.bias"]
    if model.adapters and model.adapters.adapts(f"{at}.weight"):
        low = x @ weights[f"{at}.adapter.linear_in.weight"].T
        product = product + low @ weights[f"{at}.adapter.linear_out.weight"].T * (
            model.adapters.alpha / model.adapters.rank
        )
    return product


def norm(x: Tensor, weights: Mapping[str, Tensor], at: str, model: Model) -> Tensor:
    """Normalise x [..., size] over its last dimension.

    RMSNorm (arXiv 1910.07467): x / sqrt(mean x^2 + eps) * gamma. LayerNorm (arXiv 1607.06450): the same of x - mean x,
    + beta. With zero-centred gamma the weight is gamma - 1 (Transformer Engine, `zero_centered_gamma`).
    """
    gamma = widened(weights[f"{at}.weight"]) + (1.0 if model.centered_gamma else 0.0)
    wide = widened(x)
    if model.normalization == "LayerNorm":
        wide = wide - wide.mean(-1, keepdim=True)
    normed = wide * (wide.square().mean(-1, keepdim=True) + model.epsilon).rsqrt() * gamma
    if model.normalization == "LayerNorm":
        normed = normed + weights[f"{at}.bias"]
    return normed.to(x.dtype)


def activation(x: Tensor, model: Model) -> Tensor:
    """The activation function, elementwise.

    silu: x sigmoid(x) (arXiv 1702.03118); gelu: x Phi(x) (arXiv 1606.08415), or its approximation by tanh; squared ReLU
    (arXiv 2109.08668); quick_gelu: x sigmoid(1.702 x).
    """
    if model.activation == "silu":
        return x * x.sigmoid()
    if model.activation == "quick_gelu":
        return x * (1.702 * x).sigmoid()
    if model.activation == "relu":
        return x.clamp(min=0)
    if model.activation == "squared_relu":
        return x.clamp(min=0).square()
    if model.approximate:
        return 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))
    return 0.5 * x * (1 + torch.erf(x / math.sqrt(2)))


def feed_forward(x: Tensor, weights: Mapping[str, Tensor], at: str, model: Model) -> Tensor:
    """x [t, hidden] up to ffn, through the activation, and down again.

    With gates (arXiv 2002.05202) the first half of linear_fc1's output is the gate: activation(gate) * (rest + offset),
    both clamped where the model says so (Megatron-LM core_v0.19.0, MLP.forward).
    """
    up = linear(x, weights, f"{at}.linear_fc1", model)
    if not model.gated:
        return linear(activation(up, model), weights, f"{at}.linear_fc2", model)
    gate, rest = up.chunk(2, dim=-1)
    if model.clamp is not None:
        gate, rest = gate.clamp(max=model.clamp), rest.clamp(-model.clamp, model.clamp)
    return linear(activation(gate, model) * (rest + model.glu_offset), weights, f"{at}.linear_fc2", model)
