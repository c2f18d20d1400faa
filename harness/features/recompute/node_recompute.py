"""Activation recompute: upstream's settings, and how a hook knows that backward is running a forward again.

megatron.core.tensor_parallel.checkpoint runs the forward inside backward, including the modules' hooks (0.14 to 0.19).
"""

from __future__ import annotations

from typing import Any

import torch

from harness.core.cell.axis_values import SPLIT

# MultiTokenPredictionLayer accepts no other number of layers than 1.
_FULL = {"recompute_granularity": "full", "recompute_method": "uniform", "recompute_num_layers": 1}
_FIELDS: dict[str, dict[str, Any]] = {
    "none": {},
    "selective": {"recompute_granularity": "selective"},  # recompute_modules has its default, core_attn
    "full": _FULL,
    SPLIT: {**_FULL, "distribute_saved_activations": True},
}


def recompute_fields(kind: str) -> dict[str, Any]:
    """Return the fields of upstream's configuration."""
    return _FIELDS[kind]


def recomputed_module(kind: str, layer: Any) -> Any:
    """Return the part of a transformer layer that backward recomputes; None when it recomputes nothing."""
    if kind == "none":
        return None
    if kind != "selective":
        return layer
    return getattr(getattr(layer, "self_attention", None), "core_attention", None)


def recomputing() -> bool:
    """Return whether a backward is running this forward."""
    # A graph task exists only inside a backward; torch has no public question for it (torch.utils.checkpoint asks this
    # way too).
    return torch._C._current_graph_task_id() != -1
