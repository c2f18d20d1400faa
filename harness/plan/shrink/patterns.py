"""Smaller hybrid models."""

from __future__ import annotations

from dataclasses import replace

from harness.core.cell.model import ModelConfig
from harness.core.layer_pattern import EXPERTS, MLP


def with_moe(model: ModelConfig) -> ModelConfig:
    """The model with feed-forward blocks for the experts of its pattern, if it has none."""
    return model if model.moe else replace(model, pattern=model.pattern.replace(EXPERTS, MLP))


def first_layers(model: ModelConfig, count: int) -> ModelConfig:
    """The model with the first `count` layers of its pattern, which has no cuts."""
    pattern = model.pattern[:count]
    return replace(model, pattern=pattern, layers=count, moe=model.moe if EXPERTS in pattern else None)
