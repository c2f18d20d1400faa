"""Kernels that a model asks for, on a node without a GPU."""

from __future__ import annotations

from dataclasses import replace

import torch
from megatron.core.models.common.embeddings import rope_utils
from torch.nn.attention import SDPBackend, sdpa_kernel

from harness.core.cell.model import ModelConfig
from harness.features.attention.node_rotary import attention_ops, no_rope_fusion, unsupported_kernel
from tests.runtime.conftest import config

PLAIN = config()


def test_a_model_without_special_kernels_is_supported() -> None:
    assert unsupported_kernel(PLAIN, "cpu") is None


def test_fused_rotary_positions_are_rejected_on_a_cpu() -> None:
    assert unsupported_kernel(replace(PLAIN, model=ModelConfig(rope_fusion=True)), "cpu") == (
        "model.rope_fusion is true: fused rotary kernels (apply_rope_fusion) are CUDA kernels, "
        "and the ranks compute on the CPU"
    )


def test_on_a_gpu_fused_rotary_positions_need_transformer_engine() -> None:
    there = rope_utils.fused_apply_rotary_pos_emb_thd is not None
    assert (no_rope_fusion("cuda") is None) == there


def test_the_attention_kernels_that_ran_are_named() -> None:
    query = torch.randn(1, 2, 8, 16)
    with attention_ops() as names:
        query @ query.transpose(2, 3)
    assert names == set()
    with attention_ops() as names, sdpa_kernel(SDPBackend.MATH):
        torch.nn.functional.scaled_dot_product_attention(query, query, query)
    assert names == {"_scaled_dot_product_attention_math"}
