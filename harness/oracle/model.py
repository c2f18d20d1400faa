"""The model: embedding, layers, output, and the layers that predict further tokens.

As Megatron-LM core_v0.19.0, GPTModel and HybridModel. Shapes: t slots.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from harness.features.hybrid.pattern import ATTENTION, GATED_DELTA, MAMBA
from harness.oracle.attention import grouped, latent
from harness.oracle.choices import Choice
from harness.oracle.experts import Routed, mixture
from harness.oracle.fields import Model
from harness.oracle.layers import feed_forward, norm, note
from harness.oracle.recurrent import delta_net, mamba
from harness.oracle.rows import Stream
from harness.oracle.vision import image_features
from harness.oracle.weights import EMBEDDING, OUTPUT, POSITIONS, final_norm, layer_name, prediction_name

Weights = Mapping[str, Tensor]
Biases = Mapping[int, Tensor]  # layer, from 1 -> [experts] biases by which its router chooses


@dataclass(frozen=True, kw_only=True)
class Forward:
    """What the model makes of a micro-batch."""

    logits: Tensor  # [t, vocab]
    outputs: list[Tensor]  # [t, hidden]: of the embedding, then of each layer, before features of images are added
    predictions: list[Tensor]  # [t, vocab]: logits of each prediction layer
    routed: list[Routed]  # of each layer with experts


class Routing(NamedTuple):
    """What routers are given, and what they have done so far."""

    biases: Biases
    choices: Mapping[int, Choice]  # by layer
    routed: list[Routed]


def forward(
    weights: Weights, model: Model, stream: Stream, biases: Biases, choices: Mapping[int, Choice] | None = None
) -> Forward:
    """Return logits of every slot for the token after it. `choices`: by layer, those that its router does not make
    itself.

    Features of images take the places of their tokens' embeddings, and others are added there to the outputs of the
    first layers (DeepStack, arXiv 2406.04334; Megatron-Bridge 0.6.2, Qwen3VLModel.forward, _deepstack_process).
    """
    routing = Routing(biases, choices or {}, [])
    x, added = weights[f"{EMBEDDING}.weight"][stream.tokens], list[Tensor]()
    if model.places is not None:  # learned positions (arXiv 1706.03762, section 3.5; LanguageModelEmbedding)
        x = x + weights[f"{POSITIONS}.weight"][stream.positions]
    note("embedding", "returns", x)
    if model.vision and stream.images:
        slots = (stream.tokens == model.vision.token).nonzero().flatten()
        features, added = image_features(stream.images, weights, model.vision)
        x = x.index_copy(0, slots, features)
    outputs = [x]
    for number in range(1, model.layers + 1):
        note(layer_name(number), "receives", x)
        x = _layer(x, weights, layer_name(number), number, model, stream, routing)
        note(layer_name(number), "returns", x)
        outputs.append(x)
        # After the output is kept: ranks record it in the layer's forward hook, before features are added.
        if number <= len(added):
            x = x.index_add(0, slots, added[number - 1])
    last = norm(x, weights, final_norm(model), model)
    output = weights[f"{EMBEDDING if model.tied else OUTPUT}.weight"].T
    further, hidden, tokens = [], last, stream.tokens
    for depth in range(1, model.predictions + 1):
        tokens = stream.shifted(tokens)
        hidden = _prediction(hidden, tokens, weights, depth, model, stream, routing)
        further.append(hidden @ output)
    return Forward(logits=last @ output, outputs=outputs, predictions=further, routed=routing.routed)


def _layer(
    x: Tensor,
    weights: Weights,
    at: str,
    number: int,
    model: Model,
    stream: Stream,
    routing: Routing,
) -> Tensor:
    """Apply attention, then a feed-forward block or experts, each to the normed input, and add it (pre-norm).

    Megatron-LM core_v0.19.0, TransformerLayer; in HybridModel a layer is one of the two. What routers do is added to
    `routing`.
    """
    if model.mixes(number):
        x = x + _mixed(x, weights, at, number, model, stream)
    if not model.feeds(number):
        return x
    normed = norm(x, weights, f"{at}.pre_mlp_layernorm", model)
    if not model.has_experts(number):
        return x + feed_forward(normed, weights, f"{at}.mlp", model)
    bias, choice = routing.biases[number], routing.choices.get(number)
    mixed, routed = mixture(normed, weights, f"{at}.mlp", number, model, stream, bias, choice)
    routing.routed.append(routed)
    return x + mixed


def _mixed(x: Tensor, weights: Weights, at: str, number: int, model: Model, stream: Stream) -> Tensor:
    """Return what a layer carries from token to token: by attention, or in the state of a recurrent layer."""
    letter = model.pattern[number - 1] if model.pattern else ATTENTION
    if letter == MAMBA and model.mamba:
        return mamba(norm(x, weights, f"{at}.norm", model), weights, f"{at}.mixer", model, model.mamba, stream)
    normed = norm(x, weights, f"{at}.input_layernorm", model)
    if letter == GATED_DELTA and model.delta:
        return delta_net(normed, weights, f"{at}.self_attention", model, model.delta, stream)
    if model.latent is None:
        return grouped(normed, weights, f"{at}.self_attention", model, stream.places, number)
    return latent(normed, weights, f"{at}.self_attention", model, model.latent, stream, number)


def _prediction(
    hidden: Tensor,
    tokens: Tensor,
    weights: Weights,
    depth: int,
    model: Model,
    stream: Stream,
    routing: Routing,
) -> Tensor:
    """Return hidden states [t, hidden] of the layer that predicts `depth` tokens further than the model.

    The normed embedding of the token `depth` slots ahead and the normed hidden state of the layer before, side by side,
    are projected and go through a transformer layer and a norm; the output layer is the model's (DeepSeek-V3,
    arXiv 2412.19437, section 2.2; Megatron-LM core_v0.19.0, MultiTokenPredictionLayer).
    """
    at = prediction_name(depth)
    embedded = norm(weights[f"{EMBEDDING}.weight"][tokens], weights, f"{at}.enorm", model)
    x = torch.cat([embedded, norm(hidden, weights, f"{at}.hnorm", model)], dim=-1) @ weights[f"{at}.eh_proj.weight"].T
    x = _layer(x, weights, f"{at}.mtp_model_layer", model.layers + depth, model, stream, routing)
    return norm(x, weights, f"{at}.final_layernorm", model)
