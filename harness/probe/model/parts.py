"""Upstream's settings and layer specs for experts, multi-token prediction and latent attention.

Experts run one after the other (SequentialMLP), or grouped (features/experts/node_grouped.py). norm.py chooses norms,
and features/attention/node_kinds.py core attention; everything else is the same for all kinds of attention, so that
parameters have the same names and values.
"""

from __future__ import annotations

import dataclasses
import importlib
import inspect
from typing import Any

import megatron.core.package_info as package_info
import megatron.core.transformer.transformer_config as upstream_config
import torch
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
from megatron.core.models.gpt.gpt_model import GPTModel
from megatron.core.transformer import attention
from megatron.core.transformer.identity_op import IdentityOp
from megatron.core.transformer.transformer_block import TransformerBlockSubmodules
from megatron.core.transformer.transformer_config import TransformerConfig
from megatron.core.transformer.transformer_layer import get_transformer_layer_offset

from harness.core.cell.axis_values import EXPLICIT
from harness.core.cell.config import CellConfig
from harness.core.cell.model import ACTIVATIONS
from harness.core.outcomes import STACK_UNDER_TEST, Rejection
from harness.features.attention.node_kinds import core_attention
from harness.features.experts import node_grouped
from harness.features.hybrid.node_model import MODULE as HYBRID_MODULE
from harness.features.hybrid.node_model import numbered_layers, unsupported_hybrid
from harness.features.vision.node_model import attention_class, vision_config_class
from harness.probe.model.groups import without_groups
from harness.probe.model.norm import norm_of
from harness.upstreams.node_lookup import Unavailable, lacking, module_unavailable, takes


def unsupported_parts(config: CellConfig) -> Unavailable:
    """Return why this megatron-core cannot be told to build the cell's model; None when it can.

    What it accepts and computes wrongly, or crashes on, does not count: the cell runs and fails.
    """
    release = f"megatron-core {package_info.__version__}"
    reason = unsupported_hybrid(config)
    if config.model.padding_mask and not takes(GPTModel.forward, "padding_mask"):
        reason = f"{release} has no GPTModel.forward(padding_mask): model.moe.padding_mask needs 0.16 or later"
    copied = config.model.mla is None and config.model.kv_heads < config.layout.tp
    if copied and not hasattr(attention, "all_gather_last_dim_from_tensor_parallel_region"):
        reason = f"{release} refuses tp above kv_heads: tp {config.layout.tp} with model.kv_heads "
        reason += f"{config.model.kv_heads} needs 0.16 or later"
    if config.groups == EXPLICIT and (name := without_groups()):
        reason = f"{release} has no {name}(pg_collection): groups: explicit needs a later release"
    if config.model.mtp and config.style.packed:
        # Imported here: releases before core_v0.12 do not have it.
        prediction: Any = importlib.import_module("megatron.core.transformer.multi_token_prediction")
        if not takes(prediction.roll_tensor, "packed_seq_params"):  # then GPTModel refuses it
            reason = f"{release} has no roll_tensor(packed_seq_params): model.mtp in packed rows needs 0.16 or later"
    reason = reason or node_grouped.unsupported(config)
    if reason:
        return lacking("megatron.core", Rejection(rule="stack.model", reason=reason, source=STACK_UNDER_TEST))
    if config.model.hybrid and (missing := module_unavailable(HYBRID_MODULE, "megatron.core", "HybridModel")):
        return missing
    if config.groups == EXPLICIT:
        return module_unavailable("megatron.core.process_groups_config", "megatron.core", "ProcessGroupCollection")
    return None


def config_class(config: CellConfig) -> Any:
    """Return upstream's configuration class for the cell's kind of model."""
    if config.model.vision:
        return vision_config_class()
    return upstream_config.MLATransformerConfig if config.model.mla else TransformerConfig


def layer_spec(config: CellConfig) -> Any:
    """Return the spec of one transformer layer."""
    model = config.model
    experts = {"num_experts": model.moe.experts, "moe_grouped_gemm": model.moe.grouped} if model.moe else {}
    latent = {"multi_latent_attention": True} if model.mla else {}
    normed = model.mla.normed if model.mla else model.qk_layernorm
    accepted = inspect.signature(get_gpt_layer_local_spec).parameters
    kind = {"normalization": model.normalization} if "normalization" in accepted else {}  # from core_v0.12
    spec = get_gpt_layer_local_spec(qk_layernorm=normed, **kind, **experts, **latent)
    norm = norm_of(config)
    attention = spec.submodules.self_attention.submodules
    put(attention, core_attention=core_attention(config.attention))
    if model.vision:
        # Qwen3-VL needs its own attention: it applies rotary angles of three axes per token.
        spec.submodules.self_attention.module = attention_class()
    if model.mla:
        put(attention, **dict.fromkeys(("q_layernorm", "kv_layernorm"), norm if normed else IdentityOp))
    elif model.qk_layernorm:
        put(attention, q_layernorm=norm, k_layernorm=norm)
    put(spec.submodules, input_layernorm=norm, pre_mlp_layernorm=norm)
    return spec


def dense(config: CellConfig) -> CellConfig:
    """Return the cell without experts."""
    return dataclasses.replace(config, model=dataclasses.replace(config.model, moe=None))


def layer_specs(config: CellConfig) -> list[Any]:
    """Return the spec of each layer of the whole model: with experts, or dense where `moe.layer_freq` says so."""
    layers, moe = config.model.layers, config.model.moe
    specs = {False: layer_spec(dense(config)), True: layer_spec(config)}
    return [specs[has] for has in (moe.at_layers(layers) if moe else [False] * layers)]


def layer_numbers(upstream: TransformerConfig, count: int, **virtual: int) -> list[int]:
    """Return the numbers, from 0, of this chunk's layers, as get_gpt_decoder_block_spec chooses them (0.19)."""
    layout = getattr(upstream, "pipeline_model_parallel_layout", None)
    if layout is not None:
        enums: Any = importlib.import_module("megatron.core.transformer.enums")
        return list(layout.get_layer_id_list(layer_type=enums.LayerType.decoder, **virtual))
    first = get_transformer_layer_offset(upstream, **virtual)
    return list(range(first, first + count))


def activation_function(config: CellConfig) -> Any:
    """Return the function that upstream's trainers set for the cell's activation."""
    name = ACTIVATIONS[config.model.activation].function
    if hasattr(torch.nn.functional, name):
        return getattr(torch.nn.functional, name)
    # MLP.forward compares it with the one of this module; another of the same name is in megatron.core.activations.
    home = "fusions.fused_bias_geglu" if name == "quick_gelu" else "activations"
    return getattr(importlib.import_module(f"megatron.core.{home}"), name)


def put(owner: Any, **parts: Any) -> None:
    """Replace attributes of an upstream object; AttributeError for one that it lacks, since a new one has no effect."""
    for name, part in parts.items():
        getattr(owner, name)
        setattr(owner, name, part)


def mtp_arguments(
    config: CellConfig, upstream: TransformerConfig, spec: TransformerBlockSubmodules, vp_stage: int | None
) -> dict[str, Any]:
    """Return GPTModel's keyword argument for prediction layers; empty for a model without them."""
    if config.model.mtp is None:
        return {}
    specs: Any = importlib.import_module("megatron.core.models.gpt.gpt_layer_specs")
    accepted = inspect.signature(specs.get_gpt_mtp_block_spec).parameters
    stage = {"vp_stage": vp_stage} if "vp_stage" in accepted else {}
    block = specs.get_gpt_mtp_block_spec(upstream, spec, use_transformer_engine=False, **stage)
    # None on stages that have no prediction layer.
    for layer in block.layer_specs if block is not None else ():
        layer.submodules.enorm = layer.submodules.hnorm = layer.submodules.layer_norm = norm_of(config)
    return {"mtp_block_spec": block}


def routers_of(chunk: Any, layers: int) -> dict[int, Any]:
    """Return the router of each layer of a chunk (the module inside DDP), by the layer's global number. Prediction
    layers come after the `layers` of the model.
    """
    layers_by_number = {layer.number: layer.experts for layer in numbered_layers(chunk)}
    layers_by_number |= {layers + 1 + number: layer for number, layer in enumerate(mtp_layers(chunk))}
    routers = {
        number: getattr(getattr(layer, "mlp", None), "router", None) for number, layer in layers_by_number.items()
    }
    return {number: router for number, router in routers.items() if router is not None}


def mtp_layers(chunk: Any) -> list[Any]:
    """Return the transformer layers inside the prediction layers of a chunk (the module inside DDP)."""
    block = getattr(chunk, "mtp", None)
    inner = ("mtp_model_layer", "transformer_layer")  # from 0.17 on, and before
    return [
        next(getattr(layer, name) for name in inner if hasattr(layer, name))
        for layer in (block.layers if block is not None else ())
    ]
