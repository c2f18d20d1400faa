"""The FLOPs of training on documents of different lengths."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.core.cell.config import CellConfig, ModelConfig, TrainConfig
from harness.core.cell.flops import (
    full_config,
    load_config,
    slope_config,
    train_flops,
    unpacked_config,
    weights_per_token,
    work_of,
)
from harness.core.cell.layout import Layout
from harness.core.cell.timing import NOT_TIMED, TimingConfig
from harness.core.packing.documents import DocumentsConfig, adversarial_mix
from harness.core.packing.options import PackingOptions
from harness.features.attention.config import MlaConfig
from harness.features.experts.config import MoeConfig
from harness.features.prediction.config import MtpConfig

LENGTHS = st.lists(st.integers(1, 4096), min_size=1, max_size=50)
MODEL = ModelConfig(layers=2, hidden=8, heads=2, kv_heads=1, ffn=16, vocab=32)


def test_a_small_model_by_hand() -> None:
    # Query and output 8 x 8 each, key and value 8 x 4 each; SwiGLU 3 x 8 x 16; output layer 8 x 32.
    weights = 2 * (64 + 64 + 32 + 32 + 384) + 256
    assert weights_per_token(MODEL) == weights
    assert train_flops(MODEL, [3, 5]) == 6 * weights * 8 + 6 * 2 * 8 * (9 + 25)


def test_heads_of_their_own_size_by_hand() -> None:
    wide = replace(MODEL, head_size=6)
    # Query and output 8 x 12 each, key and value 8 x 6 each; attention as if hidden were 12.
    assert weights_per_token(wide) - weights_per_token(MODEL) == 2 * (2 * 96 + 2 * 48 - 192)
    assert train_flops(wide, [3]) == 6 * weights_per_token(wide) * 3 + 6 * 2 * 12 * 9


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


CELL = CellConfig(
    layout=Layout(cp=2),
    data_path="sft",
    documents=adversarial_mix(64, 2),
    options=PackingOptions(metadata=True),
    timing=TimingConfig(documents=(4, 16), unpacked=True, full_rows=True),
)


def test_the_documents_one_per_row_are_those_of_the_cell() -> None:
    made = unpacked_config(CELL)
    assert made.documents_of(0) == CELL.documents_of(0)
    assert work_of(made).real_tokens == work_of(CELL).real_tokens
    assert work_of(made).flops == work_of(CELL).flops
    assert work_of(made).slots == 8 * 64
    assert made.timing == NOT_TIMED


def test_full_rows_have_as_many_slots_as_the_packed_ones_and_all_but_the_last_of_each_are_real() -> None:
    rows = sum(len(batch.rows) for batch in CELL.micro_batches(0)[0])
    work = work_of(full_config(CELL))
    assert work.slots == work_of(CELL).slots == rows * 64  # sft pads its rows to seq_length
    assert work.real_tokens == rows * 63
    assert work.flops == train_flops(CELL.model, [63] * rows)


@given(
    st.lists(st.integers(1, 200), min_size=1, max_size=40),
    st.sampled_from(
        [Layout(), Layout(dp=2), Layout(pp=2, vpp=2), Layout(dp=2, pp=2, vpp=2), Layout(tp=2, cp=2, sp=True)]
    ),
    st.sampled_from([1, 2]),
    st.sampled_from(["reference", "sft"]),
)
def test_whatever_a_cell_packs_can_also_be_run_as_full_rows(
    lengths: list[int], layout: Layout, micro_batch_size: int, path: str
) -> None:
    cell = CellConfig(
        layout=layout,
        data_path=path,
        micro_batch_size=micro_batch_size,
        train=TrainConfig(global_batch=24, seq_length=64),
        documents=DocumentsConfig(mode="file", lengths=tuple(lengths)),
    )
    full = load_config(cell, "full", 0)
    assert full is not None
    rows = [row for replica in full.micro_batches(0) for batch in replica for row in batch.rows]
    packed = [row for replica in cell.micro_batches(0) for batch in replica for row in batch.rows]
    assert len(rows) == len(packed)
    assert {row.length for row in rows} == {64}


def test_each_load_has_its_configuration_unless_it_is_not_a_pass_of_the_model() -> None:
    assert load_config(CELL, "packed", 0) == load_config(CELL, "turn", 0) == CELL
    assert load_config(CELL, "step", 16) == slope_config(CELL, 16)
    assert load_config(CELL, "unpacked", 0) == unpacked_config(CELL)
    assert load_config(CELL, "rotary", 4) is load_config(CELL, "rotary_other", 4) is None


def test_a_layout_that_cannot_run_the_documents_one_per_row_says_so() -> None:
    odd = replace(CELL, layout=Layout(dp=3), train=TrainConfig(global_batch=8))
    with pytest.raises(ValueError, match="8"):
        load_config(odd, "unpacked", 0)


def test_packs_of_the_slope_are_as_long_as_the_matrix_asks() -> None:
    timing = TimingConfig(documents=(4, 1024), tokens=8192)
    made = slope_config(replace(CELL, layout=Layout(), timing=timing), 1024)
    (batch,) = made.micro_batches(0)[0]
    assert (batch.slots, len(batch.placed)) == (8192, 1024)
