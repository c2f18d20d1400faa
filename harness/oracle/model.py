"""The model: embedding, layers, output, and the layers that predict further tokens.

As Megatron-LM core_v0.19.0, GPTModel. Shapes: t slots.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from harness.oracle.attention import grouped, latent
from harness.oracle.experts import Routed, mixture
from harness.oracle.fields import Model
from harness.oracle.layers import feed_forward, norm
from harness.oracle.rows import Stream
from harness.oracle.weights import EMBEDDING, FINAL_NORM, OUTPUT, layer_name, prediction_name

Weights = Mapping[str, Tensor]
Biases = Mapping[int, Tensor]  # layer, from 1 -> [experts] biases by which its router chooses


@dataclass(frozen=True, kw_only=True)
class Forward:
    """What the model makes of a micro-batch."""

    logits: Tensor  # [t, vocab]
    outputs: list[Tensor]  # [t, hidden]: of the embedding, then of each layer
    predictions: list[Tensor]  # [t, vocab]: logits of each prediction layer
    routed: list[Routed]  # of each layer with experts


def forward(weights: Weights, model: Model, stream: Stream, biases: Biases) -> Forward:
    """Logits of every slot for the token after it."""
    routed: list[Routed] = []
    outputs = [weights[f"{EMBEDDING}.weight"][stream.tokens]]
    for number in range(1, model.layers + 1):
        outputs.append(_layer(outputs[-1], weights, layer_name(number), number, model, stream, biases, routed))
    last = norm(outputs[-1], weights, FINAL_NORM, model)
    output = weights[f"{EMBEDDING if model.tied else OUTPUT}.weight"].T
    further, hidden, tokens = [], last, stream.tokens
    for depth in range(1, model.predictions + 1):
        tokens = stream.shifted(tokens)
        hidden = _prediction(hidden, tokens, weights, depth, model, stream, biases, routed)
        further.append(hidden @ output)
    return Forward(logits=last @ output, outputs=outputs, predictions=further, routed=routed)


def _layer(
    x: Tensor,
    weights: Weights,
    at: str,
    number: int,
    model: Model,
    stream: Stream,
    biases: Biases,
    routed: list[Routed],
) -> Tensor:
    """Attention, then a feed-forward block or experts, each on the normed input and added to it (pre-norm).

    Megatron-LM core_v0.19.0, TransformerLayer. What routers do is added to `routed`.
    """
    normed = norm(x, weights, f"{at}.input_layernorm", model)
    if model.latent is None:
        x = x + grouped(normed, weights, f"{at}.self_attention", model, stream, number)
    else:
        x = x + latent(normed, weights, f"{at}.self_attention", model, model.latent, stream, number)
    normed = norm(x, weights, f"{at}.pre_mlp_layernorm", model)
    if not model.has_experts(number):
        return x + feed_forward(normed, weights, f"{at}.mlp", model)
    mixed, one = mixture(normed, weights, f"{at}.mlp", number, model, stream, biases[number])
    routed.append(one)
    return x + mixed


def _prediction(
    hidden: Tensor,
    tokens: Tensor,
    weights: Weights,
    depth: int,
    model: Model,
    stream: Stream,
    biases: Biases,
    routed: list[Routed],
) -> Tensor:
    """Hidden states [t, hidden] of the layer that predicts `depth` tokens further than the model.

    The normed embedding of the token `depth` slots ahead and the normed hidden state of the layer before, side by side,
    are projected and go through a transformer layer and a norm; the output layer is the model's (DeepSeek-V3,
    arXiv 2412.19437, section 2.2; Megatron-LM core_v0.19.0, MultiTokenPredictionLayer).
    """
    at = prediction_name(depth)
    embedded = norm(weights[f"{EMBEDDING}.weight"][tokens], weights, f"{at}.enorm", model)
    x = torch.cat([embedded, norm(hidden, weights, f"{at}.hnorm", model)], dim=-1) @ weights[f"{at}.eh_proj.weight"].T
    x = _layer(x, weights, f"{at}.mtp_model_layer", model.layers + depth, model, stream, biases, routed)
    return norm(x, weights, f"{at}.final_layernorm", model)
