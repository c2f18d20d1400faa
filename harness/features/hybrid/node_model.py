"""Upstream's HybridModel: settings, layer specs from the local GPT spec, and where its layers are.

Its own layer specs need Transformer Engine, and so does its final norm, which it builds by name.
Checked with megatron-core 0.18, 0.19 and main of 2026-08; MambaModel of older releases has other layer specs.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import megatron.core.package_info as package_info

from harness.core.cell.config import CellConfig
from harness.features.hybrid.pattern import GATED_DELTA, MAMBA, layers_of
from harness.probe.model.norm import norm_of

MODULE = "megatron.core.models.hybrid.hybrid_model"


def unsupported_hybrid(config: CellConfig) -> str | None:
    """Return why this release cannot build the cell's hybrid model; None when it can."""
    if not config.model.hybrid:
        return None
    release = f"megatron-core {package_info.__version__}"
    if importlib.util.find_spec("megatron.core.models.hybrid") is None:
        return f"{release} has no HybridModel: model.pattern needs 0.18 or later"
    if GATED_DELTA in config.model.pattern and importlib.util.find_spec("megatron.core.ssm.gated_delta_net") is None:
        return f"{release} has no Gated Delta Net: model.pattern {config.model.pattern!r} needs a later one"
    return None


def missing_package(config: CellConfig) -> str | None:
    """Return a package that the cell's layers need and the stack lacks, with what to do; None if all are there."""
    if not config.model.hybrid or MAMBA not in config.model.pattern or importlib.util.find_spec("einops") is not None:
        return None
    return (
        "Mamba layers of megatron-core need einops, which this stack does not have; add it to `packages` of the stack"
    )


def missing_kernels(config: CellConfig) -> str | None:
    """Return a package of CUDA kernels that the cell's recurrent layers need and the stack lacks.

    None if all are there.
    """
    needed = {GATED_DELTA: ("fla",), MAMBA: ("mamba_ssm", "causal_conv1d")}
    packages = [name for letter in config.model.pattern for name in needed.get(letter, ())]
    absent = next((name for name in packages if importlib.util.find_spec(name) is None), None)
    return (
        f"recurrent layers on a GPU need {absent}, which this stack does not have; or use device: cpu"
        if absent
        else None
    )


def pattern_of(config: CellConfig) -> str:
    """Return the pattern for the layout: on one stage, where upstream would build the first segment alone, without
    cuts.
    """
    pattern = config.model.pattern
    return layers_of(pattern) if config.layout.pp * config.layout.vpp == 1 else pattern


def build_hybrid(config: CellConfig, upstream: Any, spec: Any, **arguments: Any) -> Any:
    """Build a chunk of HybridModel.

    `spec`: of stack_spec; `arguments`: those of GPTModel after the layer spec, by name.
    """
    use_own_norm(config)
    model = importlib.import_module(MODULE).HybridModel
    return model(upstream, spec, hybrid_layer_pattern=pattern_of(config), **arguments)


def use_own_norm(config: CellConfig) -> None:
    """Replace the final norm, which upstream builds by name."""
    block: Any = importlib.import_module("megatron.core.models.hybrid.hybrid_block")
    block.TENorm = norm_of(config)


def stack_spec(dense: Any, routed: Any, norm: Any, pattern: str) -> Any:
    """Return the spec of all layers, from the class of norms and the modules of GPT layers' local specs: `dense`, and
    `routed` with experts.
    """
    from megatron.core.fusions.fused_bias_dropout import get_bias_dropout_add
    from megatron.core.models.hybrid.hybrid_block import HybridStack, HybridStackSubmodules
    from megatron.core.ssm.mlp_layer import MLPLayer
    from megatron.core.transformer.spec_utils import ModuleSpec
    from megatron.core.transformer.transformer_layer import TransformerLayer, TransformerLayerSubmodules

    def mixing(module: Any, mixer: Any) -> Any:
        parts = {"input_layernorm": norm, "self_attention": mixer, "self_attn_bda": get_bias_dropout_add}
        return ModuleSpec(module=module, submodules=TransformerLayerSubmodules(**parts))

    def feeding(module: Any, block: Any) -> Any:
        parts = {"pre_mlp_layernorm": norm, "mlp": block, "mlp_bda": get_bias_dropout_add}
        return ModuleSpec(module=module, submodules=TransformerLayerSubmodules(**parts))

    layers = {
        "attention_layer": mixing(TransformerLayer, dense.self_attention),
        "mlp_layer": feeding(MLPLayer, dense.mlp),
        "moe_layer": feeding(_expert_layer(), routed.mlp),
    }
    if GATED_DELTA in pattern:
        layers["gdn_layer"] = mixing(TransformerLayer, _gated_delta_net(norm))
    if MAMBA in pattern:
        layers["mamba_layer"] = _mamba_layer(norm)
    return ModuleSpec(module=HybridStack, submodules=HybridStackSubmodules(**layers))


def _expert_layer() -> Any:
    module = importlib.import_module("megatron.core.transformer.transformer_layer")
    # A class of its own since megatron-core 0.18's CUDA graphs for experts; before, experts were plain layers.
    return getattr(module, "MoETransformerLayer", module.TransformerLayer)


def _gated_delta_net(norm: Any) -> Any:
    from megatron.core.ssm.gated_delta_net import GatedDeltaNet, GatedDeltaNetSubmodules
    from megatron.core.tensor_parallel.layers import ColumnParallelLinear, RowParallelLinear
    from megatron.core.transformer.spec_utils import ModuleSpec

    parts = GatedDeltaNetSubmodules(in_proj=ColumnParallelLinear, out_norm=norm, out_proj=RowParallelLinear)
    return ModuleSpec(module=GatedDeltaNet, submodules=parts)


def _mamba_layer(norm: Any) -> Any:
    from megatron.core.fusions.fused_bias_dropout import get_bias_dropout_add
    from megatron.core.ssm.mamba_layer import MambaLayer, MambaLayerSubmodules
    from megatron.core.ssm.mamba_mixer import MambaMixer, MambaMixerSubmodules
    from megatron.core.tensor_parallel.layers import ColumnParallelLinear, RowParallelLinear
    from megatron.core.transformer.spec_utils import ModuleSpec

    parts = MambaMixerSubmodules(in_proj=ColumnParallelLinear, out_proj=RowParallelLinear)
    mixer = ModuleSpec(module=MambaMixer, submodules=parts)
    layer = MambaLayerSubmodules(norm=norm, mixer=mixer, mamba_bda=get_bias_dropout_add)
    return ModuleSpec(module=MambaLayer, submodules=layer)


@dataclass(frozen=True)
class NumberedLayer:
    """A layer of a chunk under the number that records have: from 1, over the whole model."""

    number: int
    whole: Any  # module whose output is the layer's
    mixer: Any = None  # module that receives the packed params; None: an MLP or experts
    experts: Any = None  # module with `mlp.router`; None: no experts


def numbered_layers(chunk: Any) -> Iterator[NumberedLayer]:
    """Yield the layers of a chunk (the module inside DDP), in order."""
    for layer in chunk.decoder.layers:
        yield NumberedLayer(layer.layer_number, layer, _mixer(layer), _routed(layer))


def _routed(layer: Any) -> Any:
    """Return the layer, if it has experts."""
    return layer if hasattr(getattr(layer, "mlp", None), "router") else None


def _mixer(layer: Any) -> Any:
    """Return the module of a layer that gets packed params, or None: core attention, or all of a recurrent layer."""
    if hasattr(layer, "mixer"):
        return layer.mixer
    attention = getattr(layer, "self_attention", None)
    return attention if is_recurrent(attention) else getattr(attention, "core_attention", None)


def is_recurrent(module: Any) -> bool:
    """Return whether a module is a GatedDeltaNet or a MambaMixer."""
    # By attribute: importing either class would need packages that a stack without such layers lacks.
    return hasattr(module, "gated_delta_rule") or hasattr(module, "d_state")


def sections(owner: Any, name: str) -> tuple[int, ...]:
    """Return full sizes of the parts of a parameter of a recurrent layer that tensor parallelism splits separately.

    `owner`: the layer's GatedDeltaNet or MambaMixer; empty for every other parameter. From upstream's docstrings:
    query, key, value, gate, beta, alpha; and gate, value, B, C, dt.
    """
    config = owner.config
    if hasattr(owner, "gated_delta_rule"):
        key = config.linear_key_head_dim * config.linear_num_key_heads
        value = config.linear_value_head_dim * config.linear_num_value_heads
        heads = config.linear_num_value_heads
        sizes = {"in_proj.weight": (key, key, value, value, heads, heads), "conv1d.weight": (key, key, value)}
        return sizes.get(name, ())
    inner, state = config.mamba_head_dim * config.mamba_num_heads, config.mamba_num_groups * config.mamba_state_dim
    convolved = (inner, state, state)
    sizes = {"in_proj.weight": (inner, *convolved, config.mamba_num_heads)}
    return (sizes | dict.fromkeys(("conv1d_weight", "conv1d_bias", "conv1d.weight", "conv1d.bias"), convolved)).get(
        name, ()
    )
