"""Megatron-Bridge's adapters: LoRA, DoRA and canonical LoRA on the linear layers of a model chunk.

Checked with megatron-bridge 0.4 to 0.6. They import Transformer Engine, and run without a GPU on Megatron's own layers.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from harness.features.adapters.config import CANONICAL, DORA, LORA, PeftConfig
from harness.upstreams.node_lookup import Unavailable, module_unavailable

_CLASSES = {LORA: ("lora", "LoRA"), DORA: ("dora", "DoRA"), CANONICAL: ("canonical_lora", "CanonicalLoRA")}
_HOME = "megatron.bridge.peft"


def unavailable_adapters(peft: PeftConfig | None) -> Unavailable:
    """Return why this stack has no adapters; None if it has, or if none are wanted."""
    return module_unavailable(f"{_HOME}.{_CLASSES[peft.method][0]}", "megatron.bridge") if peft else None


def upstream_peft(peft: PeftConfig) -> Any:
    """Return upstream's description of the adapters, which also adds them."""
    module, name = _CLASSES[peft.method]
    kind = getattr(importlib.import_module(f"{_HOME}.{module}"), name)
    return kind(target_modules=list(peft.adapted), dim=peft.rank, alpha=peft.alpha)


def adapted(peft: PeftConfig | None, chunk: Any) -> Any:
    """Return the chunk with adapters and all other weights frozen, as Megatron-Bridge makes it before it wraps it in
    DDP.
    """
    return upstream_peft(peft)(chunk, training=True) if peft else chunk


def adapted_layers(chunk: Any) -> Iterator[Any]:
    """Return the linear layers of a chunk with a LoRA adapter: `to_wrap`, the layer itself, and `adapter`."""
    return (module for module in chunk.modules() if type(module).__name__ == "LoRALinear")


def merged_weight(layer: Any) -> Tensor:
    """Return upstream's merge of an adapted layer: its weight, with the adapter's product added. Collective over tp."""
    adapter, group = layer.adapter, _group_of(layer)
    accepted = inspect.signature(_merger().merge).parameters
    groups = {"tp_group": group, "tp_size": group.size()}
    more = {name: value for name, value in groups.items() if name in accepted}  # none in 0.4, both in 0.5
    with torch.no_grad():
        return _merger().merge(  # type: ignore[no-any-return]
            layer.to_wrap.weight,
            adapter.linear_out.weight,
            adapter.linear_in.weight,
            adapter.alpha,
            adapter.dim,
            **more,
        )


def _merger() -> Any:
    for module in ("lora_merge", "lora"):  # from 0.6 on, and before
        if (spec := importlib.util.find_spec(f"{_HOME}.{module}")) is not None:
            return importlib.import_module(spec.name).LoRAMerge()
    raise ModuleNotFoundError(f"{_HOME} has no LoRAMerge")


def _group_of(layer: Any) -> Any:
    """Return the ranks that hold the shards of the layer and of its adapter."""
    return layer.adapter.linear_in.tp_group


def output_off(layer: Any, seed: int) -> float:
    """Return how far the output of the layer with the merged weight is from that with its adapter, relative to what the
    adapter adds. Collective over tp.
    """
    base, weight = layer.to_wrap, layer.to_wrap.weight
    with torch.no_grad():
        features = _input(layer, seed)
        plain, adapted_output = base(features)[0], layer(features)[0]
        # Swapped in place: a copy of the layer would not have its hooks, groups and sequence parallelism.
        base_weight, weight.data = weight.data, merged_weight(layer)
        merged = base(features)[0]
        weight.data = base_weight
    added, off = (
        (minuend - subtrahend).float().norm()
        for minuend, subtrahend in ((adapted_output, plain), (merged, adapted_output))
    )
    # An adapter that adds nothing proves nothing, so it is a finding.
    return float(off / added) if added else math.inf


_SLOTS = 16  # enough for sequence parallelism over 8 ranks


def _input(layer: Any, seed: int) -> Tensor:
    """Return random activations [slots, 1, features], this rank's part of them."""
    group, base = _group_of(layer), layer.to_wrap
    generator = torch.Generator().manual_seed(seed)
    whole = torch.randn((_SLOTS, 1, base.input_size), generator=generator)
    if layer.adapter.input_is_parallel:
        whole = whole.chunk(group.size(), -1)[group.rank()]
    elif base.config.sequence_parallel:
        whole = whole.chunk(group.size(), 0)[group.rank()]
    return whole.to(base.weight).contiguous()
