"""The parts that all layers are made of: linear maps, norms and feed-forward blocks.

Weights are looked up by their global name, as Megatron's checkpoints of one rank have it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from contextvars import ContextVar
from typing import Literal

import torch
from torch import Tensor

from harness.features.adapters.config import CANONICAL, DORA, PeftConfig
from harness.oracle.fields import Model

Boundary = Literal["receives", "returns"]
Noted = tuple[str, Boundary]  # of upstream's module of this name
# The tensors of a forward, where `operations_of` asks for them.
NOTED: ContextVar[dict[Noted, tuple[Tensor, ...]] | None] = ContextVar("NOTED", default=None)


def note(at: str, name: Boundary, *tensors: Tensor) -> None:
    """Note what upstream's module that is called `at` receives or returns."""
    noted = NOTED.get()
    if noted is not None:
        noted[at, name] = tensors


def widened(x: Tensor) -> Tensor:
    """Return x in float32 at least: upstream computes norms, angles, softmax and losses of a bf16 model in it too."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


def linear(x: Tensor, weights: Mapping[str, Tensor], at: str, model: Model) -> Tensor:
    """Return x W^T + b: x [..., in], W [out, in]; there is a bias where there is a weight of its name."""
    product, bias = x @ weights[f"{at}.weight"].T, weights.get(f"{at}.bias")
    within = at.endswith("linear_qkv")  # upstream adds other biases after adapters
    if bias is not None and within:
        product = product + bias
    if model.adapters and model.adapters.adapts(f"{at}.weight"):
        product = _adapted(product, x, weights, at, model, model.adapters)
    note(at, "returns", product)
    return product if bias is None or within else product + bias


def _adapted(
    product: Tensor, x: Tensor, weights: Mapping[str, Tensor], at: str, model: Model, peft: PeftConfig
) -> Tensor:
    """Return what adapters make of the product of a linear layer [..., out]; x [..., in].

    LoRA adds s x A^T B^T, A [r, in], B [out, r], s = alpha / r (arXiv 2106.09685, section 4.1). DoRA scales each output
    of that sum by m / ||W + s B A||, m [out], without a gradient through the norm of the row (arXiv 2402.09353,
    section 4.3). Canonical LoRA has such factors for each of query, key and value, and for gate and up projection
    (Megatron-Bridge 0.6.2, LoRALinearSplitQKV, LoRALinearSplitFC1UpGate).
    """

    scale = peft.alpha / peft.rank

    def low_rank(adapter: str) -> Tensor:
        low = x @ weights[f"{adapter}.linear_in.weight"].T
        return low @ weights[f"{adapter}.linear_out.weight"].T * scale

    adapter, layer = f"{at}.adapter", at.rpartition(".")[2]
    if peft.method == CANONICAL and layer == "linear_qkv":
        parts = [low_rank(f"{adapter}.adapter_{part}") for part in "qkv"]
        by_group = [part.reshape(*part.shape[:-1], model.groups, -1) for part in parts]
        return product + torch.cat(by_group, -1).flatten(-2)  # each group has its queries, then key and value
    if peft.method == CANONICAL and layer == "linear_fc1":
        return product + torch.cat([low_rank(f"{adapter}.adapter_{part}") for part in ("gate", "up")], -1)
    product = product + low_rank(adapter)
    if peft.method != DORA:
        return product
    change = weights[f"{adapter}.linear_out.weight"] @ weights[f"{adapter}.linear_in.weight"]
    # Detached: section 4.3 of the paper treats the norm as a constant, and so does upstream.
    row_norms = (weights[f"{at}.weight"] + scale * change).norm(dim=1).detach()
    scaled: Tensor = product * (weights[f"{adapter}.weight_magnitude"] / row_norms)
    return scaled


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
    note(at, "returns", normed)
    return normed.to(x.dtype)


def activation(x: Tensor, model: Model) -> Tensor:
    """Apply the activation function, elementwise.

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
    # The fused kernel of bias and gelu has only the tanh form, so a fused model differs from an unfused one by 1e-3.
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
