"""Arithmetic of training on documents of different lengths."""

from __future__ import annotations

from collections.abc import Iterable

from harness.words.cell import ModelConfig


def weights_per_token(model: ModelConfig) -> int:
    """Weights that every token is multiplied with: attention projections, SwiGLU, output layer."""
    head = model.hidden // model.heads
    attention = model.hidden * (2 * model.hidden + 2 * model.kv_heads * head)
    return model.layers * (attention + 3 * model.hidden * model.ffn) + model.hidden * model.vocab


def train_flops(model: ModelConfig, lengths: Iterable[int]) -> float:
    """Floating-point operations of forward and backward over documents of these real lengths, padding not counted.

    dense      6 x weights x sum(L): 2 per weight and token, times 3 for forward and the two products of backward
    attention  6 x layers x hidden x sum(L^2): scores and weighted sum are 4 x L^2 x hidden, halved because a token
               attends to earlier ones only (causal), times 3

    So two documents of L/2 cost less than one of L. The formula is that of Megatron-LM,
    megatron/training/training.py: num_floating_point_operations, with its sum of lengths and of squared lengths.
    """
    lengths = list(lengths)
    dense = 6.0 * weights_per_token(model) * sum(lengths)
    return dense + 6.0 * model.layers * model.hidden * sum(length**2 for length in lengths)
