"""The FLOPs of training on documents of different lengths."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.core.cell.config import ModelConfig
from harness.core.cell.flops import train_flops, weights_per_token
from harness.core.cell.model import MlaConfig, MoeConfig, MtpConfig

LENGTHS = st.lists(st.integers(1, 4096), min_size=1, max_size=50)
MODEL = ModelConfig(layers=2, hidden=8, heads=2, kv_heads=1, ffn=16, vocab=32)


def test_a_small_model_by_hand() -> None:
    # Query and output 8 x 8 each, key and value 8 x 4 each; SwiGLU 3 x 8 x 16; output layer 8 x 32.
    weights = 2 * (64 + 64 + 32 + 32 + 384) + 256
    assert weights_per_token(MODEL) == weights
    assert train_flops(MODEL, [3, 5]) == 6 * weights * 8 + 6 * 2 * 8 * (9 + 25)


def test_experts_prediction_and_latent_attention_by_hand() -> None:
    experts = replace(MODEL, moe=MoeConfig(experts=4, topk=2, ffn=5))
    # Two experts of 3 x 8 x 5 in place of 384; upstream does not count the router.
    assert weights_per_token(experts) - weights_per_token(MODEL) == 2 * (240 - 384)
    shared = replace(MODEL, moe=MoeConfig(experts=4, topk=2, ffn=5, shared_ffn=6))
    assert weights_per_token(shared) - weights_per_token(experts) == 2 * 3 * 8 * 6
    predicting = replace(MODEL, mtp=MtpConfig(layers=1))
    # One more layer, three norms of 8, its projection 16 x 8 and another output layer.
    assert weights_per_token(predicting) - weights_per_token(MODEL) == 576 + 24 + 128 + 256
    sizes = MlaConfig(q_lora_rank=3, kv_lora_rank=5, qk_head_dim=4, qk_pos_emb_head_dim=2, v_head_dim=6)
    latent = replace(MODEL, mla=sizes)
    # Queries 8 x 3 and 3 x 12; keys 8 x 7 and 5 x 20; output 12 x 8; in place of 192.
    assert weights_per_token(latent) - weights_per_token(MODEL) == 2 * (24 + 36 + 56 + 100 + 96 - 192)
    assert train_flops(latent, [3]) == 6 * weights_per_token(latent) * 3 + 6 * 2 * 12 * 9


@given(LENGTHS, LENGTHS)
def test_documents_add_up_in_any_order(one: list[int], other: list[int]) -> None:
    assert train_flops(MODEL, [*other, *one]) == pytest.approx(train_flops(MODEL, one) + train_flops(MODEL, other))


@given(LENGTHS)
def test_one_document_of_all_tokens_costs_most(lengths: list[int]) -> None:
    together = train_flops(MODEL, [sum(lengths)])
    assert together >= train_flops(MODEL, lengths)
    assert (together == train_flops(MODEL, lengths)) == (len(lengths) == 1)
