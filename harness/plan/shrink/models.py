"""Smaller models: fewer layers of a pattern, simpler experts."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from harness.core.cell.config import CellConfig
from harness.core.cell.model import ModelConfig, MoeConfig
from harness.core.layer_pattern import EXPERTS, MLP
from harness.core.setting import keys_of


def with_moe(model: ModelConfig) -> ModelConfig:
    """The model with feed-forward blocks for the experts of its pattern, if it has none."""
    return model if model.moe else replace(model, pattern=model.pattern.replace(EXPERTS, MLP))


def first_layers(model: ModelConfig, count: int) -> ModelConfig:
    """The model with the first `count` layers of its pattern, which has no cuts."""
    pattern = model.pattern[:count]
    return replace(model, pattern=pattern, layers=count, moe=model.moe if EXPERTS in pattern else None)


def plainer(config: CellConfig, part: str) -> list[CellConfig]:
    """Cells with simpler experts, if `part` of the model is `moe`: each setting of them at its default."""
    moe = config.model.moe
    if part != "moe" or moe is None:
        return []
    plain: list[dict[str, Any]] = [{"aux_loss": "none"}, {"padding_mask": False}, {"dispatcher": "alltoall"}]
    plain += [{name: key.default} for name, key in keys_of(MoeConfig).items() if key.setting.later]
    return [replace(config, model=replace(config.model, moe=replace(moe, **change))) for change in plain]
