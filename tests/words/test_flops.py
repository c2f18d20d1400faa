"""The variable-length formula of arithmetic."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.words.cell import ModelConfig
from harness.words.flops import train_flops, weights_per_token

LENGTHS = st.lists(st.integers(1, 4096), min_size=1, max_size=50)
MODEL = ModelConfig(layers=2, hidden=8, heads=2, kv_heads=1, ffn=16, vocab=32)


def test_a_small_model_by_hand() -> None:
    # Query and output 8 x 8 each, key and value 8 x 4 each; SwiGLU 3 x 8 x 16; output layer 8 x 32.
    weights = 2 * (64 + 64 + 32 + 32 + 384) + 256
    assert weights_per_token(MODEL) == weights
    assert train_flops(MODEL, [3, 5]) == 6 * weights * 8 + 6 * 2 * 8 * (9 + 25)


@given(LENGTHS, LENGTHS)
def test_documents_add_up_in_any_order(one: list[int], other: list[int]) -> None:
    assert train_flops(MODEL, [*other, *one]) == pytest.approx(train_flops(MODEL, one) + train_flops(MODEL, other))


@given(LENGTHS)
def test_one_document_of_all_tokens_costs_most(lengths: list[int]) -> None:
    together = train_flops(MODEL, [sum(lengths)])
    assert together >= train_flops(MODEL, lengths)
    assert (together == train_flops(MODEL, lengths)) == (len(lengths) == 1)
