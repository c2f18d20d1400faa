"""Which attention a cell uses on this node, and why an attention cannot run here.

`auto` resolves to the first that can run of Transformer Engine, torch's varlen_attn and the harness's reference
attention. All ranks have the same stack and layout, and so the same result.
"""

from __future__ import annotations

import importlib.util
import os
import re
import sys
from dataclasses import replace
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import megatron.core.transformer.enums as upstream_enums
import torch
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_with_transformer_engine_spec

from harness.core.cell.config import CellConfig
from harness.core.hardware import DevicePlacement, is_deterministic_te
from harness.core.outcomes import STACK_UNDER_TEST, Missing, Rejection
from harness.features.attention.limits import (
    KERNELS,
    TE_DETERMINISTIC,
    TE_KINDS,
    TE_PADDING,
    first_padded,
    limits,
    te_auto_padding,
    te_deterministic,
)
from harness.features.attention.node_reference import ReferenceAttention, VarlenAttention
from harness.upstreams.builtin.node_reference import SETS_PAD_BETWEEN_SEQS

FLASH_PACKAGES = (
    "flash-attn",
    "flash-attn-3",
    "flash-attn-4",
)  # Transformer Engine's flash backend needs one of these
_HOW = "add it to `packages` of the stack"
# Megatron sets NVTE_FLASH_ATTN, NVTE_FUSED_ATTN and NVTE_UNFUSED_ATTN from its attention_backend.
_BACKENDS = {"te": "auto", "te-flash": "flash", "te-fused": "fused"}


def unsupported_attention(
    config: CellConfig, place: DevicePlacement, capability: tuple[int, int] | None = None
) -> Rejection | Missing | None:
    """Return why the cell's attention cannot run on this device with this software; None when it can.

    `capability`: compute capability of the node's GPUs, e.g. (9, 0); None without GPUs.
    """
    kind = config.attention
    if kind not in KERNELS:
        return None
    if place.kind != "cuda":
        reason = f"attention {kind} has only CUDA kernels, and ranks compute on the CPU; use attention: reference"
        if config.device != "cpu":
            return Missing(reason=f"{reason}, or a machine with a GPU")
        return Rejection(rule="attention.kernel-device", reason=reason, source=STACK_UNDER_TEST)
    if kind == "varlen":
        return _unsupported_varlen()
    return _unsupported_engine(config, capability)


def _unsupported_varlen() -> Rejection | None:
    if importlib.util.find_spec("torch.nn.attention.varlen") is not None:
        return None
    reason = f"torch {torch.__version__} has no varlen_attn: it needs torch 2.10 or later"
    return Rejection(rule="attention.varlen-torch", reason=reason, source=STACK_UNDER_TEST)


def _unsupported_engine(config: CellConfig, capability: tuple[int, int] | None) -> Rejection | Missing | None:
    engine = installed("transformer-engine")
    if engine is None or installed("transformer-engine-torch") is None:
        reason = f"attention {config.attention} needs transformer-engine[pytorch], which this stack does not have"
        return Missing(reason=f"{reason}; {_HOW}")
    explicit = config.path.sets_pad_between_seqs and SETS_PAD_BETWEEN_SEQS
    if (wrong := te_auto_padding(_numbers(engine), config, explicit)) and config.lift != TE_PADDING[0]:
        return Rejection(rule=TE_PADDING[0], reason=wrong, source=TE_PADDING[1])
    bound = capability is not None and is_deterministic_te(os.environ, timed=config.timing.timed)
    if bound and (wrong := te_deterministic(config, capability or (0, 0))) and config.lift != TE_DETERMINISTIC[0]:
        return Rejection(rule=TE_DETERMINISTIC[0], reason=wrong, source=TE_DETERMINISTIC[1])
    return _unsupported_flash(config) if config.attention == "te-flash" else None


def _unsupported_flash(config: CellConfig) -> Rejection | Missing | None:
    present = [name for name in FLASH_PACKAGES if installed(name)]
    packages = ", ".join(FLASH_PACKAGES)
    if not present:
        return Missing(reason=f"attention te-flash needs one of {packages}; this stack has none: add one to `packages`")
    if "flash-attn-3" not in present and (padded := first_padded(config)) and config.lift != "attention.te-flash":
        reason = f"{padded}; {', '.join(present)} does not support padding between documents: use flash-attn-3"
        return Rejection(rule="attention.te-flash", reason=reason, source="Transformer Engine get_attention_backend")
    return None


def installed(name: str) -> str | None:
    """Return the version of a distribution, which is not imported; None when it is not installed."""
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _numbers(text: str) -> tuple[int, ...]:
    """Return the version numbers: "2.16.0+abc" gives (2, 16, 0)."""
    leading = re.match(r"\d+(?:\.\d+)*", text)
    return tuple(int(part) for part in leading.group().split(".")) if leading else ()


def resolved(config: CellConfig, place: DevicePlacement, capability: tuple[int, int] | None = None) -> CellConfig:
    """Return the cell with `auto` replaced by the attention it uses; `capability` as in `unsupported_attention`."""
    if config.attention != "auto":
        return config
    preferred = ("te", "varlen") if place.kind == "cuda" and config.dtype == "bf16" else ()
    for kind in preferred:
        tried = replace(config, attention=kind)
        if not limits(tried) and unsupported_attention(tried, place, capability) is None:
            return tried
    return replace(config, attention="reference")


def core_attention(kind: str) -> Any:
    """Return the class for core_attention in a layer spec; the reference attention for an unresolved `auto`."""
    if kind in TE_KINDS:
        # From upstream's own spec, since releases give the module and its arguments different names.
        return get_gpt_layer_with_transformer_engine_spec().submodules.self_attention.submodules.core_attention
    return VarlenAttention if kind == "varlen" else ReferenceAttention


def attention_fields(kind: str) -> dict[str, Any]:
    """Return the fields of upstream's configuration that select Transformer Engine's backend."""
    return {"attention_backend": upstream_enums.AttnBackend[_BACKENDS[kind]]} if kind in TE_KINDS else {}


def described(kind: str) -> str:
    """Return the attention with its version, e.g. "Transformer Engine 2.20.2, te-fused"."""
    if kind in TE_KINDS:
        return f"Transformer Engine {installed('transformer-engine')}, {kind}"
    return f"torch varlen_attn {torch.__version__}" if kind == "varlen" else "harness reference attention"


def chosen_backend(kind: str) -> str:
    """Return the backend of the last call of Transformer Engine, from its cache; empty when there was no call."""
    name = "transformer_engine.pytorch.attention.dot_product_attention.dot_product_attention"
    # Not imported: looking must not load Transformer Engine into a rank that does not use it.
    state = getattr(sys.modules.get(name), "_attention_backends", None) if kind in TE_KINDS else None
    if not state:
        return ""
    return next((name for name in ("flash", "fused", "unfused") if state.get(f"use_{name}_attention")), "")
