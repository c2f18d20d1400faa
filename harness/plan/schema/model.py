"""The `model:` section. `moe`, `mtp` and `mla` are nested mappings, also as values of the axes `model.moe` ..."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from harness.core.cell.model import ModelConfig
from harness.core.layer_pattern import EXPERTS, layers_of
from harness.core.vision import VisionConfig
from harness.plan.matrix.problems import KeyPath, Problems
from harness.plan.schema.section import parts_of

PARTS = parts_of(ModelConfig)


def parse_model(values: Any, problems: Problems) -> ModelConfig | None:
    """The `model:` section; None after adding all its problems."""
    path: KeyPath = ("model",)
    model = problems.validate(ModelConfig, values, path)
    for key, message in model_problems(model) if model else ():
        problems.add((*path, *key.split(".")), message)
    return model


def model_problems(model: ModelConfig) -> list[tuple[str, str]]:
    """Reasons why no layout can run a model: (key, message with the arithmetic)."""
    found = []
    if model.hidden % model.heads:
        found.append(("heads", f"hidden {model.hidden} is not divisible by heads {model.heads}"))
    elif model.hidden // model.heads % 2:
        size = model.hidden // model.heads
        found.append(("heads", f"rotary positions need an even head size: {model.hidden} / {model.heads} = {size}"))
    if model.heads % model.kv_heads:
        found.append(("kv_heads", f"heads {model.heads} is not divisible by kv_heads {model.kv_heads}"))
    found += pattern_problems(model)
    moe, mla = model.moe, model.mla
    if moe and moe.topk > moe.experts:
        found.append(("moe.topk", f"topk {moe.topk} is more than experts {moe.experts}"))
    if mla and mla.qk_pos_emb_head_dim % 2:
        size = mla.qk_pos_emb_head_dim
        found.append(("mla.qk_pos_emb_head_dim", f"rotary positions need an even size, and {size} is odd"))
    if model.vision:
        found += vision_problems(model, model.vision)
    return found


def vision_problems(model: ModelConfig, vision: VisionConfig) -> list[tuple[str, str]]:
    """Reasons why no layout can run a model with its vision."""
    found = []
    half, together = model.hidden // model.heads // 2, sum(vision.sections)
    if together != half:
        named = " + ".join(map(str, vision.sections))
        found.append(("vision.sections", f"half of the head size is {half}, and {named} = {together}"))
    if vision.hidden % (4 * vision.heads):
        found.append(
            (
                "vision.heads",
                f"hidden {vision.hidden} is not divisible by 4 x heads {vision.heads}, as rotary positions need",
            )
        )
    if vision.deepstack > vision.layers:
        found.append(("vision.deepstack", f"the tower has {vision.layers} layers, and deepstack is {vision.deepstack}"))
    return found


def pattern_problems(model: ModelConfig) -> list[tuple[str, str]]:
    """Reasons why no layout can run a model with its pattern."""
    layers = layers_of(model.pattern)
    if not layers:
        return []
    found = []
    if model.layers != len(layers):
        found.append(("layers", f"pattern {model.pattern!r} has {len(layers)} layers, and layers is {model.layers}"))
    if (EXPERTS in layers) != (model.moe is not None):
        found.append(("moe", f"pattern {model.pattern!r} and moe do not agree on whether there are experts"))
    return found


def shown_part(part: Mapping[str, Any] | Any) -> str:
    """The text of a model part (`moe`, `mtp`, `mla`) in tables."""
    return "none" if part is None else str(part)
