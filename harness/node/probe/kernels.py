"""Choices of kernels that a model asks for: fused rotary positions. They have not run on a GPU yet."""

from __future__ import annotations

import megatron.core.models.common.embeddings.rope_utils as rope_utils

from harness.words.cell import CellConfig


def lacking(config: CellConfig, device: str) -> str | None:
    """Why kernels that a cell asks for cannot run on a kind of device, "cpu" or "cuda"; None when they can."""
    reason = no_rope_fusion(device) if config.model.rope_fusion else None
    return f"model.rope_fusion is true: {reason}" if reason else None


def no_rope_fusion(device: str) -> str | None:
    """Why fused rotary kernels cannot run on a kind of device; None where they can."""
    if device != "cuda":
        return "fused rotary kernels (apply_rope_fusion) are CUDA kernels, and the ranks compute on the CPU"
    if rope_utils.fused_apply_rotary_pos_emb_thd is None:
        return "fused rotary kernels (apply_rope_fusion) are Transformer Engine's, and the stack has none"
    return None
