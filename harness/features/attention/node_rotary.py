"""Kernels that a cell asks for (fused rotary positions), the names of attention kernels that ran, and the rotary
function that is timed alone.
"""

from __future__ import annotations

import copy
import importlib
import inspect
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import megatron.core.transformer.attention as upstream
import torch
from megatron.core import parallel_state
from torch import Tensor

from harness.core.cell.config import CellConfig
from harness.core.cell.timing import ROTARY_HEADS, ROTARY_SIZE

# Torch operators, each with one attention kernel, and autograd functions of Transformer Engine.
_ATTENTION = re.compile(
    r"aten::(_scaled_dot_product_\w+?|_(?:flash|cudnn|efficient)_attention_forward\w*?)(?:_for_cpu)?$|"
    r"(FusedAttnFunc\w*|FlashAttnFunc\w*|FlashAttnVarlenFunc\w*|UnfusedDotProductAttention)$"
)


@contextmanager
def attention_ops() -> Iterator[set[str]]:
    """Collect the names of the attention operators that torch's profiler sees while the body runs.

    Filled at its end.
    """
    names: set[str] = set()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiler:
        yield names
    for event in profiler.events() or ():
        if kernel := _ATTENTION.match(event.name):
            names.add(kernel[1] or kernel[2])


def unsupported_kernel(config: CellConfig, device: str) -> str | None:
    """Return why a kernel that the cell asks for cannot run on `device`, "cpu" or "cuda"; None when all can."""
    reason = no_rope_fusion(device) if config.model.rope_fusion else None
    return f"model.rope_fusion is true: {reason}" if reason else None


def no_rope_fusion(device: str) -> str | None:
    """Return why fused rotary kernels cannot run on `device`, "cpu" or "cuda"; None when they can."""
    if device != "cuda":
        return "fused rotary kernels (apply_rope_fusion) are CUDA kernels, and the ranks compute on the CPU"
    # Imported here: releases before core_v0.9 do not have it.
    rope_utils: Any = importlib.import_module("megatron.core.models.common.embeddings.rope_utils")
    if rope_utils.fused_apply_rotary_pos_emb_thd is None:
        return "fused rotary kernels (apply_rope_fusion) need Transformer Engine, which the stack does not have"
    return None


# The stack's rotary function for packed (THD) tensors, called as attention calls it.
#
# | megatron-core | unfused THD function | cost per document |
# |---|---|---|
# | 0.14 | rotates document by document, then joins | a rotation |
# | 0.15 to 0.18 | gathers a table for the whole pack, rotates once | a slice of the table |
# | 0.19 | rotates document by document into the output (d30e165203) | a rotation, and a copy in backward |
# | main of 2026-08 | gathers by index; takes max_seqlen | none |
#
# All have apply_rotary_pos_emb(t, freqs, config, cu_seqlens, mscale, cp_group); max_seqlen is passed if they take it.
def with_other_rotary(config: Any, device: str) -> Any:
    """Return upstream's configuration with apply_rope_fusion inverted, or the reason (str) why the stack cannot
    run it.
    """
    inverted = copy.copy(config)
    inverted.apply_rope_fusion = not config.apply_rope_fusion
    return (no_rope_fusion(device) if inverted.apply_rope_fusion else None) or inverted


def rotary_load(
    config: Any, documents: int, tokens: int, device: torch.device, dtype: torch.dtype
) -> Callable[[], None]:
    """Return a function that runs forward and backward of the rotary function over one pack.

    `config`: upstream's TransformerConfig. The pack has `tokens` tokens over all context-parallel ranks, in `documents`
    documents of the same length; this rank rotates [tokens / cp, heads, head size]. Values are random.
    """
    group = parallel_state.get_context_parallel_group()
    length = tokens // documents
    shape = (tokens // group.size(), ROTARY_HEADS, ROTARY_SIZE)
    states: Tensor = torch.randn(shape, device=device, dtype=dtype, requires_grad=True)
    grad = torch.randn(shape, device=device, dtype=dtype)
    # As long as the longest document: upstream slices or indexes it for each.
    table = torch.randn(length, 1, 1, ROTARY_SIZE, device=device)
    offsets = torch.arange(0, tokens + 1, length, device=device, dtype=torch.int32)
    more: dict[str, Any] = {"cu_seqlens": offsets, "cp_group": group}
    if "max_seqlen" in inspect.signature(upstream.apply_rotary_pos_emb).parameters:
        more["max_seqlen"] = length

    def run() -> None:
        # Otherwise every run after the first would add to a gradient, which is a kernel more.
        states.grad = None
        # Looked up at each call, as in attention, so that replacements are timed.
        upstream.apply_rotary_pos_emb(states, table, config, **more).backward(grad)

    return run
