"""Activation recompute: what upstream is asked for, and how a hook knows that backward runs a forward once more.

megatron.core.tensor_parallel.checkpoint runs it inside backward, with the hooks of modules (0.14 to 0.19).
"""

from __future__ import annotations

from typing import Any

import torch

_FIELDS: dict[str, dict[str, Any]] = {
    "none": {},
    "selective": {"recompute_granularity": "selective"},  # of upstream's recompute_modules the default, core_attn
    # MultiTokenPredictionLayer takes no other number of layers than 1.
    "full": {"recompute_granularity": "full", "recompute_method": "uniform", "recompute_num_layers": 1},
}


def recompute_fields(kind: str) -> dict[str, Any]:
    """Fields of upstream's configuration."""
    return _FIELDS[kind]


def recomputed_module(kind: str, layer: Any) -> Any:
    """The part of a transformer layer that backward computes once more; None where it computes none."""
    if kind == "none":
        return None
    return layer if kind == "full" else layer.self_attention.core_attention


def recomputing() -> bool:
    """Whether this forward is run by a backward."""
    return torch._C._current_graph_task_id() != -1
