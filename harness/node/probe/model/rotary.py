"""The stack's rotary function for packed (THD) tensors, called as attention calls it.

| megatron-core | unfused THD function | cost per document |
|---|---|---|
| 0.14 | rotates document by document, then joins | a rotation |
| 0.15 to 0.18 | gathers a table for the whole pack, rotates once | a slice of the table |
| 0.19 | rotates document by document into the output (d30e165203) | a rotation, and a copy in backward |
| main of 2026-08 | gathers by index; takes max_seqlen | none |

All have apply_rotary_pos_emb(t, freqs, config, cu_seqlens, mscale, cp_group); max_seqlen is passed if they take it.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable
from typing import Any

import megatron.core.transformer.attention as upstream
import torch
from megatron.core import parallel_state
from torch import Tensor

from harness.core.cell.timing import ROTARY_HEADS, ROTARY_SIZE
from harness.node.probe.model.kernels import no_rope_fusion


def with_other_rotary(config: Any, device: str) -> Any:
    """Upstream's configuration with apply_rope_fusion inverted, or the reason (str) why the stack cannot run it."""
    other = copy.copy(config)
    other.apply_rope_fusion = not config.apply_rope_fusion
    return (no_rope_fusion(device) if other.apply_rope_fusion else None) or other


def rotary_load(
    config: Any, documents: int, tokens: int, device: torch.device, dtype: torch.dtype
) -> Callable[[], None]:
    """A function that runs forward and backward of the rotary function over one pack.

    `config`: upstream's TransformerConfig. The pack has `tokens` tokens over all context-parallel ranks, in `documents`
    documents of the same length; this rank rotates [tokens / cp, heads, head size]. Values are random.
    """
    group = parallel_state.get_context_parallel_group()
    length = tokens // documents
    shape = (tokens // group.size(), ROTARY_HEADS, ROTARY_SIZE)
    states: Tensor = torch.randn(shape, device=device, dtype=dtype, requires_grad=True)
    grad = torch.randn(shape, device=device, dtype=dtype)
    table = torch.randn(length, 1, 1, ROTARY_SIZE, device=device)
    offsets = torch.arange(0, tokens + 1, length, device=device, dtype=torch.int32)
    more: dict[str, Any] = {"cu_seqlens": offsets, "cp_group": group}
    if "max_seqlen" in inspect.signature(upstream.apply_rotary_pos_emb).parameters:
        more["max_seqlen"] = length

    def run() -> None:
        states.grad = None
        # Looked up at each call, as in attention, so that replacements are timed.
        upstream.apply_rotary_pos_emb(states, table, config, **more).backward(grad)

    return run
