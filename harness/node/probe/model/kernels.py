"""Kernels that a cell asks for (fused rotary positions), and the names of attention kernels that ran."""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from harness.core.cell.config import CellConfig

# Torch operators, each with one attention kernel, and autograd functions of Transformer Engine.
_ATTENTION = re.compile(
    r"aten::(_scaled_dot_product_\w+?|_(?:flash|cudnn|efficient)_attention_forward\w*?)(?:_for_cpu)?$|"
    r"(FusedAttnFunc\w*|FlashAttnFunc\w*|FlashAttnVarlenFunc\w*|UnfusedDotProductAttention)$"
)


@contextmanager
def attention_ops() -> Iterator[set[str]]:
    """Operator names of the attention kernels that torch's profiler sees while the body runs; filled at its end."""
    names: set[str] = set()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiler:
        yield names
    for event in profiler.events() or ():
        if found := _ATTENTION.match(event.name):
            names.add(found[1] or found[2])


def unsupported_kernel(config: CellConfig, device: str) -> str | None:
    """Why a kernel that the cell asks for cannot run on `device`, "cpu" or "cuda"; None when all can."""
    reason = no_rope_fusion(device) if config.model.rope_fusion else None
    return f"model.rope_fusion is true: {reason}" if reason else None


def no_rope_fusion(device: str) -> str | None:
    """Why fused rotary kernels cannot run on `device`, "cpu" or "cuda"; None when they can."""
    if device != "cuda":
        return "fused rotary kernels (apply_rope_fusion) are CUDA kernels, and the ranks compute on the CPU"
    # Imported here: releases before core_v0.9 do not have it.
    rope_utils: Any = importlib.import_module("megatron.core.models.common.embeddings.rope_utils")
    if rope_utils.fused_apply_rotary_pos_emb_thd is None:
        return "fused rotary kernels (apply_rope_fusion) need Transformer Engine, which the stack does not have"
    return None
