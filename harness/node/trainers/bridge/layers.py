"""Prediction layers without Transformer Engine.

Whatever the layer spec, GPTModelProvider asks megatron.core for prediction layers of Transformer Engine
(`mtp_block_spec`, 0.6), which need a GPU. Here it gets those that core builds from its local layers.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from harness.core.cell.axis_values import TE_KINDS


def use_local_prediction(kind: str) -> None:
    """Put them where upstream takes prediction layers from. `kind`: the cell's attention, resolved."""
    import megatron.core.models.gpt.gpt_layer_specs as layer_specs

    if kind not in TE_KINDS:
        layer_specs.get_gpt_mtp_block_spec = partial(_local, layer_specs.get_gpt_mtp_block_spec)


def _local(upstream: Callable[..., Any], config: Any, spec: Any, use_transformer_engine: bool, **more: Any) -> Any:
    return upstream(config, spec, use_transformer_engine=False, **more)
