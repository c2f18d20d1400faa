from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.core.cell.config import CellConfig, ModelConfig, TrainConfig
from harness.core.cell.layout import Layout
from harness.core.packing.documents import DocumentsConfig, documents_of_step
from harness.core.packing.packers import plan_step
from harness.features.prediction.config import MtpConfig
from harness.matrix.rules.table import RULES, rejections


def reason(rule: str, config: CellConfig) -> str | None:
    return next((item.reason for item in rejections(config) if item.rule == rule), None)


def cell(
    data_path: str = "sft",
    *,
    micro_batch_size: int = 1,
    model: ModelConfig | None = None,
    train: TrainConfig | None = None,
    documents: DocumentsConfig | None = None,
    **layout: Any,
) -> CellConfig:
    return CellConfig(
        layout=Layout(**layout, sp=layout.get("tp", 1) > 1),
        data_path=data_path,
        micro_batch_size=micro_batch_size,
        model=model or ModelConfig(),
        train=train or TrainConfig(),
        documents=documents or DocumentsConfig(mode="file", lengths=(16,)),
    )


@pytest.mark.parametrize(
    ("rule", "model", "sizes", "expected"),
    [
        (
            "layout.layers-by-pp",
            {"layers": 6},
            {"pp": 2, "vpp": 2},
            "model.layers 6 is not divisible by pp 2 x vpp 2 = 4",
        ),
        (
            "layout.layers-by-pp",
            {"layers": 6},
            {"pp": 2, "embedding_as_layer": True},
            "model.layers 6 + 1 = 7 is not divisible by pp 2 x vpp 1 = 2: 7 = 3 * 2 + 1",
        ),
        (
            "layout.layers-by-pp",
            {"layers": 8},
            {"pp": 3, "first_stage_layers": 1},
            "model.layers 8 - first_stage_layers 1 = 7, and 7 is not divisible by 2 other stages x vpp 1 = 2",
        ),
        (
            "layout.layers-by-pp",
            {"layers": 8},
            {"pp": 2, "vpp": 2, "last_stage_layers": 3},
            "last_stage_layers 3 is not divisible by vpp 2",
        ),
        (
            "layout.layers-by-pp",
            {"layers": 4},
            {"pp": 2, "first_stage_layers": 2, "last_stage_layers": 1},
            "model.layers 4 - first_stage_layers 2 - last_stage_layers 1 = 1 layers for the other 0 of pp 2 stages",
        ),
        (
            "layout.layers-by-pp",
            {"layers": 4},
            {"pp": 2, "first_stage_layers": 2, "loss_as_layer": True},
            "first_stage_layers with embedding_as_layer or loss_as_layer",
        ),
        (
            "layout.stages",
            {},
            {"pp": 2, "stages": "Et|t|ttL"},
            "stages has 3 chunks, and the layout has pp 2 x vpp 1 = 2",
        ),
        ("layout.stages", {}, {"pp": 2, "stages": "Et|ttL"}, "stages has 3 x t, and model.layers is 4"),
        ("layout.stages", {}, {"pp": 2, "stages": "Ettt|tmL"}, "stages has 1 x m, and model.mtp.layers is 0"),
        ("layout.stages", {}, {"pp": 2, "stages": "Ett|ttL", "first_stage_layers": 2}, "set one of them"),
        (
            "layout.stages",
            {"mtp": MtpConfig()},
            {"pp": 2, "vpp": 2, "stages": "Ett|ttm||L"},
            "stages has m in chunk 1, and prediction layers are in the last chunk of their stage",
        ),
        (
            "layout.stages",
            {"mtp": MtpConfig()},
            {"pp": 2, "vpp": 2, "stages": "Ett|tt|m|L"},
            "stages has m on the first stage, whose embedding would not learn from it",
        ),
        (
            "layout.order",
            {},
            {"pp": 2, "cp": 2, "pp_before_dp": True},
            "pp_before_dp needs as many replicas of experts as of the other weights: tp 1 x cp 2 = 2, and expert tp 1 "
            "x ep 1 = 1",
        ),
        ("layout.heads-by-tp", {"heads": 2, "kv_heads": 2}, {"tp": 4}, "model.heads 2 is not divisible by tp 4"),
        (
            "layout.kv-heads-by-tp",
            {"hidden": 96, "heads": 12, "kv_heads": 4},
            {"tp": 6},
            "model.kv_heads 4 is neither a multiple nor a divisor of tp 6",
        ),
        (
            "layout.kv-heads-by-tp",
            {"heads": 8, "kv_heads": 1, "head_size": 2},
            {"tp": 8},
            "(heads 8 + 2 x kv_heads 1) x head size 2 = 20 is not divisible by tp 8",
        ),
        ("layout.ffn-by-tp", {"ffn": 126}, {"tp": 4}, "model.ffn 126 is not divisible by tp 4"),
        ("layout.vocab-by-tp", {"vocab": 101}, {"tp": 2}, "model.vocab 101 is not divisible by tp 2"),
        ("layout.vpp-needs-pp", {}, {"vpp": 2}, "vpp 2 interleaves model chunks"),
    ],
)
def test_a_size_that_does_not_divide_is_rejected_and_the_nearest_that_does_is_not(
    rule: str, model: dict[str, Any], sizes: dict[str, Any], expected: str
) -> None:
    found = reason(rule, cell(model=ModelConfig(**model), **sizes))
    assert found is not None
    assert expected in found
    assert reason(rule, cell()) is None


def test_sequence_parallel_needs_tensor_parallel() -> None:
    config = CellConfig(layout=Layout(sp=True), data_path="sft")
    assert "tp is 1" in (reason("layout.sp-needs-tp", config) or "")
    assert reason("layout.sp-needs-tp", cell(tp=2)) is None


@pytest.mark.parametrize(
    ("sizes", "micro_batch_size", "expected"),
    [
        ({"dp": 3}, 1, "train.global_batch 8 is not divisible by dp 3 x micro_batch_size 1 = 3: 8 = 2 * 3 + 2"),
        ({"dp": 2}, 3, "dp 2 x micro_batch_size 3 = 6"),
        ({"pp": 4, "vpp": 2}, 4, "dp 1 x micro_batch_size 4 x pp 4 (interleaved) = 16"),
    ],
)
def test_unpacked_documents_divide_over_replicas(sizes: dict[str, int], micro_batch_size: int, expected: str) -> None:
    found = reason("batch.documents-by-replicas", cell("unpacked", micro_batch_size=micro_batch_size, **sizes))
    assert expected in (found or "")
    assert reason("batch.documents-by-replicas", cell("sft", micro_batch_size=micro_batch_size, **sizes)) is None


def test_packed_rows_that_cannot_be_split_far_enough_are_rejected() -> None:
    documents = DocumentsConfig(mode="file", lengths=(64,))
    config = cell(dp=3, train=TrainConfig(global_batch=4), documents=documents)
    assert reason("batch.rows-by-replicas", config) == (
        "step 0: 4 documents fill 4 rows of 64 tokens; the next multiple of dp 3 x micro_batch_size 1 = 3 is 6 rows, "
        "more than there are documents"
    )
    assert reason("batch.rows-by-replicas", cell(dp=3, train=TrainConfig(global_batch=4))) is None  # rows can split


def test_a_later_step_that_cannot_be_split_is_found() -> None:
    documents = DocumentsConfig(mode="file", lengths=(16, 16, 16, 16, 64, 64, 64, 64))
    config = cell(dp=3, train=TrainConfig(global_batch=4, steps=2), documents=documents)
    assert (reason("batch.rows-by-replicas", config) or "").startswith("step 1: 4 documents fill 4 rows")


@given(
    lengths=st.lists(st.integers(1, 80), min_size=1, max_size=12),
    dp=st.integers(1, 4),
    micro_batch_size=st.integers(1, 3),
    interleaved=st.booleans(),
    data_path=st.sampled_from(["unpacked", "reference", "sft", "scheduler"]),
)
def test_the_rules_predict_exactly_when_a_step_cannot_be_planned(
    lengths: list[int], dp: int, micro_batch_size: int, interleaved: bool, data_path: str
) -> None:
    config = cell(
        data_path,
        micro_batch_size=micro_batch_size,
        train=TrainConfig(global_batch=len(lengths), steps=1),
        documents=DocumentsConfig(mode="file", lengths=tuple(lengths)),
        dp=dp,
        pp=2,
        vpp=2 if interleaved else 1,
    )
    foretold = any(item.rule.startswith("batch.") for item in rejections(config))
    try:
        config.micro_batches(0)
        failed = False
    except ValueError:
        failed = True
    assert foretold is failed


def test_rules_have_unique_ids_and_sources() -> None:
    assert len({rule.id for rule in RULES}) == len(RULES)
    assert all(rule.source for rule in RULES)


def test_the_rule_draws_the_documents_that_the_cell_gets() -> None:
    """The rule counts rows with the same packer and documents as the cell."""
    documents = DocumentsConfig(mode="distribution", max_seq_len=64, mean_seq_len=20)
    for count, dp in itertools.product((5, 7), (2, 3)):
        config = cell(dp=dp, train=TrainConfig(global_batch=count, steps=4), documents=documents)
        wrong = []
        for step in range(4):
            made = documents_of_step(documents, seed=1234, step=step, count=count, seq_length=64)
            try:
                plan_step(made, config.style, config.layout, seq_length=64, micro_batch_size=1)
            except ValueError:
                wrong.append(step)
        found = reason("batch.rows-by-replicas", config)
        assert (found is not None) is bool(wrong)
        assert found is None or found.startswith(f"step {wrong[0]}:")


def test_the_scheduler_never_splits_its_first_row() -> None:
    short = DocumentsConfig(mode="file", lengths=(1, 2, 3))
    config = cell("scheduler", dp=2, train=TrainConfig(global_batch=8), documents=short)
    assert reason("batch.rows-by-replicas", config) == (
        "step 0: 8 documents fill 1 rows of 64 tokens, of which scheduler cannot split enough for a multiple of dp 2 x "
        "micro_batch_size 1 = 2"
    )


def test_rows_packed_in_advance_must_divide_without_splitting() -> None:
    """Other data paths split rows until each holds one document, so rows divide whenever documents do."""
    config = cell(
        "bridge_offline", dp=2, train=TrainConfig(global_batch=6), documents=DocumentsConfig(mode="file", lengths=(32,))
    )
    assert reason("batch.rows-by-replicas", config) == (
        "step 0: 6 documents fill 3 rows of 64 tokens, which bridge_offline packs in advance and cannot split into a "
        "multiple of dp 2 x micro_batch_size 1 = 2"
    )
    assert reason("batch.rows-by-replicas", replace(config, data_path="reference")) is None
    assert reason("batch.rows-by-replicas", replace(config, layout=Layout(dp=3))) is None


def test_rows_packed_in_advance_may_hold_one_document_each() -> None:
    full = DocumentsConfig(mode="file", lengths=(64,))
    config = cell("bridge_offline", dp=2, train=TrainConfig(global_batch=4, steps=1), documents=full)
    assert len([row for replica in config.micro_batches(0) for batch in replica for row in batch.rows]) == 4
    assert reason("batch.rows-by-replicas", config) is None


@given(
    tp=st.integers(1, 6),
    pp=st.integers(1, 6),
    vpp=st.integers(1, 3),
    sp=st.booleans(),
    layers=st.integers(1, 12),
    heads=st.integers(1, 12),
    kv_heads=st.integers(1, 12),
    ffn=st.integers(1, 12),
    vocab=st.integers(1, 12),
)
def test_layouts_are_refused_exactly_when_they_leave_a_remainder(
    tp: int, pp: int, vpp: int, sp: bool, layers: int, heads: int, kv_heads: int, ffn: int, vocab: int
) -> None:
    model = ModelConfig(layers=layers, heads=heads, kv_heads=kv_heads, ffn=ffn, vocab=vocab)
    config = replace(cell("unpacked", model=model), layout=Layout(tp=tp, pp=pp, vpp=vpp, sp=sp))
    expected = {
        "layout.layers-by-pp": layers / (pp * vpp) != layers // (pp * vpp),
        "layout.heads-by-tp": heads / tp != heads // tp,
        "layout.kv-heads-by-tp": kv_heads % tp != 0
        and (tp % kv_heads != 0 or (heads + 2 * kv_heads) * model.head % tp != 0),
        "layout.ffn-by-tp": ffn / tp != ffn // tp,
        "layout.vocab-by-tp": vocab / tp != vocab // tp,
        "layout.sp-needs-tp": sp and tp == 1,
        "layout.vpp-needs-pp": vpp > 1 and pp == 1,
    }
    found = {item.rule for item in rejections(config)}
    assert {rule for rule in expected if rule in found} == {rule for rule, wrong in expected.items() if wrong}
