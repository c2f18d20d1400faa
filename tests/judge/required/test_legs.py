from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from harness.core.packing.arithmetic import PAD
from harness.core.run.records import DocumentLoss, Progress, RankRecord, SeenParams, TensorForm, TensorSeen
from harness.core.vision import VisionConfig
from harness.judge.evidence.cell_evidence import CellEvidence
from harness.judge.required import legs
from harness.judge.required.expected import Expected
from tests.judge.parts import with_predictions
from tests.judge.simulator import at, config_of, evidence_for

LOSS = DocumentLoss(loss_sum=1.0, tokens=1)


def problems_of(evidence: CellEvidence, rank: int = 0) -> list[str]:
    return list(legs.problems(Expected(evidence), evidence.records[rank]))


def after(
    change: Callable[[RankRecord], object], data_path: str = "reference", rank: int = 0, **keys: Any
) -> list[str]:
    """Problems of a rank after a change of its record."""
    evidence = evidence_for(config_of(data_path, **keys))
    change(evidence.records[rank])
    return problems_of(evidence, rank)


@pytest.mark.parametrize(
    "make",
    [
        lambda: evidence_for(config_of("sft", tp=2, pp=2)),
        lambda: evidence_for(config_of("reference", cp=2, dp=2, pp=2, vpp=2)),
        lambda: evidence_for(config_of("unpacked", micro_batch_size=2)),
        lambda: evidence_for(config_of("skyrl", pp=2)),
        lambda: evidence_for(replace(config_of("sft", pp=2), recompute="full")),
        with_predictions,
    ],
)
def test_clean_evidence_has_no_problem(make: Callable[[], CellEvidence]) -> None:
    evidence = make()
    assert [problem for rank in evidence.records for problem in problems_of(evidence, rank)] == []


@pytest.mark.parametrize(
    ("progress", "words"),
    [
        (Progress(leg="training", step=1, phase="forward"), "training leg, step 1"),
        (Progress(leg="end", step=1, phase="done"), "end leg, step 1"),
        (Progress(leg="end", step=2, micro_batch=1, phase="done"), "end leg, step 2"),
        (Progress(leg="end", step=2, phase="start"), "end leg, step 2"),
    ],
)
def test_a_completed_rank_reached_the_end(progress: Progress, words: str) -> None:
    found = after(lambda record: setattr(record, "progress", progress))
    assert found == [f"progress: the rank completed, but last was in {words}"]


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (lambda record: record.micro_batches.pop(), "micro_batches: 1 counts for 2 steps"),
        (
            lambda record: record.workloads.pop(0),
            "workloads: recorded for [('training', 0), ('training', 1)], expected for [('metadata', 0), "
            "('training', 0), ('training', 1)]",
        ),
        (lambda record: record.batches.pop(), "batches: 1 missing, such as (0, 0, 2); 3 are planned"),
        (
            lambda record: record.batches.append(replace(record.batches[0], micro_batch=3)),
            "batches: 1 not planned, such as (0, 0, 3); 3 are planned",
        ),
        (
            lambda record: record.batches.append(record.batches[0]),
            "batches: 1 listed twice, such as (0, 0, 0); 3 are planned",
        ),
        (
            lambda record: setattr(record, "layers", record.layers[2:]),
            "layers: 2 missing, such as (0, 0, 0, 1); 24 are planned",
        ),
        (
            lambda record: record.layers.append(replace(record.layers[0], step=2)),
            "layers: 1 not planned, such as (2, 0, 0, 1); 24 are planned",
        ),
        (
            lambda record: record.layers.append(record.layers[-1]),
            "layers: 1 listed twice, such as (1, 0, 2, 4); 24 are planned",
        ),
        (
            lambda record: record.recomputed.append(record.layers[0]),
            "recomputed: 1 not planned, such as (0, 0, 0, 1); 0 are planned",
        ),
    ],
)
def test_a_leg_records_what_is_planned_once(change: Callable[[RankRecord], object], problem: str) -> None:
    assert after(change) == [problem]


def test_missing_unplanned_and_repeated_batches_are_named_together() -> None:
    def change(record: RankRecord) -> None:
        record.batches[2] = replace(record.batches[2], micro_batch=4)
        record.batches.append(record.batches[0])

    assert after(change) == [
        "batches: 1 missing, such as (0, 0, 2); 3 are planned",
        "batches: 1 not planned, such as (0, 0, 4); 3 are planned",
        "batches: 1 listed twice, such as (0, 0, 0); 3 are planned",
    ]


def test_recomputed_layers_are_recorded() -> None:
    evidence = evidence_for(replace(config_of("reference"), recompute="selective"))
    evidence.records[0].recomputed.pop(0)
    assert problems_of(evidence) == ["recomputed: 1 missing, such as (0, 0, 0, 1); 24 are planned"]


def set_tensor(name: str, **fields: Any) -> Callable[[RankRecord], None]:
    """Replace one tensor of micro-batch 1, or fields of it."""

    def change(record: RankRecord) -> None:
        batch = record.batches[1]
        setattr(batch, name, replace(getattr(batch, name), **fields) if fields else None)

    return change


INTEGERS, FLOATS = "torch.int64 or torch.int32", "torch.float32 or torch.float64"
WHERE = "batches: step 0, chunk 0, micro-batch 1"


@pytest.mark.parametrize(
    ("name", "others", "dtypes"),
    [
        ("tokens", ["torch.int32"], INTEGERS),
        ("labels", ["torch.int32"], INTEGERS),
        ("position_ids", ["torch.int32"], INTEGERS),
        ("loss_mask", ["torch.float64"], FLOATS),
        ("log_probs", ["torch.float64", "torch.bfloat16"], f"{FLOATS} or torch.bfloat16"),
    ],
)
def test_a_tensor_with_the_right_content_has_the_right_shape_and_dtype(
    name: str, others: list[str], dtypes: str
) -> None:
    shape = [56] if name == "log_probs" else [1, 56]
    wrong = after(set_tensor(name, shape=[1, 55]), "skyrl")
    assert wrong == [f"{WHERE}: {name} has shape [1, 55] and no mismatch; the plan has {shape}"]
    assert after(set_tensor(name, dtype="torch.float16"), "skyrl") == [
        f"{WHERE}: {name} is torch.float16, not {dtypes}"
    ]
    for dtype in others:
        assert after(set_tensor(name, dtype=dtype), "skyrl") == []


@pytest.mark.parametrize("name", ["tokens", "log_probs"])
def test_the_shape_of_a_tensor_with_wrong_content_is_left_to_the_checks(name: str) -> None:
    assert after(set_tensor(name, shape=[1], dtype="torch.bool", mismatches=3), "skyrl") == []


@pytest.mark.parametrize("name", ["tokens", "labels", "position_ids", "loss_mask"])
def test_a_batch_has_the_fields_that_its_chunk_uses(name: str) -> None:
    assert after(set_tensor(name)) == [f"{WHERE} has no {name}"]


def test_a_field_that_the_stage_does_not_use_must_have_the_right_shape() -> None:
    seen = TensorSeen(shape=[2, 56], dtype="torch.int64", mismatches=0)
    found = after(lambda record: setattr(record.batches[1], "labels", seen), pp=2)
    assert found == [f"{WHERE}: labels has shape [2, 56] and no mismatch; the plan has [1, 56]"]


def test_log_probs_have_all_slots_of_the_cp_ranks() -> None:
    evidence = evidence_for(config_of("skyrl", cp=2))
    assert evidence.records[0].batches[0].log_probs is not None
    assert problems_of(evidence) == []
    evidence.records[0].batches[0].log_probs.shape = [1]
    slots = evidence.plan[0][0][0].batch.slots
    assert problems_of(evidence) == [
        f"batches: step 0, chunk 0, micro-batch 0: log_probs has shape [1] and no mismatch; the plan has [{slots}]"
    ]


def test_log_probs_are_recorded_where_the_data_path_returns_them() -> None:
    seen = TensorSeen(shape=[56], dtype="torch.float32", mismatches=0)

    def add(record: RankRecord) -> None:
        record.batches[1].log_probs = seen

    assert after(set_tensor("log_probs"), "skyrl") == [f"{WHERE}: log_probs are missing"]
    assert after(add) == [f"{WHERE}: log_probs are present"]
    assert after(add, "skyrl", pp=2) == [f"{WHERE}: log_probs are present"]


def test_packed_data_paths_and_only_these_have_packed_params() -> None:
    assert after(lambda record: setattr(record.batches[1], "params", None)) == [f"{WHERE} has no packed params"]
    found = after(lambda record: setattr(record.batches[1], "params", 0), "unpacked")
    assert found == [f"{WHERE} has packed params"]


def test_a_batch_that_is_not_planned_is_named_once() -> None:
    def change(record: RankRecord) -> None:
        record.batches.append(replace(record.batches[0], micro_batch=-1, tokens=None, params=None))

    assert after(change) == ["batches: 1 not planned, such as (0, 0, -1); 3 are planned"]


def form(same_as: str | None = None, device: str = "cpu") -> TensorForm:
    return TensorForm(dtype="torch.int32", shape=[7], device=device, same_as=same_as)


ALL = "'cu_seqlens_kv', 'cu_seqlens_kv_padded', 'cu_seqlens_q', 'cu_seqlens_q_padded'"


def without_values(params: SeenParams) -> None:
    params.cu_seqlens_kv_padded = None
    params.forms["cu_seqlens_kv_padded"] = form()


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (
            lambda params: params.forms.pop("cu_seqlens_kv"),
            "forms are of ['cu_seqlens_kv_padded', 'cu_seqlens_q', 'cu_seqlens_q_padded'], offsets are "
            "['cu_seqlens_q', 'cu_seqlens_kv', 'cu_seqlens_q_padded', 'cu_seqlens_kv_padded']",
        ),
        (
            without_values,
            f"forms are of [{ALL}], offsets are ['cu_seqlens_q', 'cu_seqlens_kv', 'cu_seqlens_q_padded']",
        ),
        (
            lambda params: params.forms.update(cu_seqlens_q=form("another")),
            "cu_seqlens_q cannot be the same tensor as another, which has other values",
        ),
        (
            lambda params: params.forms.update(cu_seqlens_q_padded=form("cu_seqlens_q")),
            "cu_seqlens_q_padded cannot be the same tensor as cu_seqlens_q, which has other values",
        ),
        (lambda params: setattr(params, "max_seqlen_type", None), "max_seqlen_q is 20 of type None"),
        (lambda params: setattr(params, "max_seqlen_q", None), "max_seqlen_q is None of type int"),
    ],
)
def test_packed_params_state_the_form_of_every_tensor(change: Callable[[SeenParams], object], problem: str) -> None:
    found = after(lambda record: change(record.packed_params[0]), cp=2)
    assert found == [f"packed_params: number 0: {problem}"]


def test_offsets_without_values_on_the_meta_device_have_a_form() -> None:
    def change(record: RankRecord) -> None:
        params = record.packed_params[0]
        params.cu_seqlens_kv_padded = None
        params.forms["cu_seqlens_kv_padded"] = form(device="meta")

    assert after(change, cp=2) == []


def test_packed_params_are_used_and_distinct() -> None:
    def change(record: RankRecord) -> None:
        record.packed_params.append(record.packed_params[0])

    assert after(change) == [
        "packed_params: number 3 is not used",
        "packed_params: the same values are listed twice",
    ]


def of_step(**fields: Any) -> Callable[[RankRecord], None]:
    def change(record: RankRecord) -> None:
        record.steps[1] = replace(record.steps[1], **fields)

    return change


def test_losses_are_recorded_on_the_last_stage_only() -> None:
    assert after(of_step(loss_sum=None)) == ["steps: step 1: loss_sum is None on the last stage"]
    assert after(of_step(token_count=None)) == ["steps: step 1: token_count is None on the last stage"]
    assert after(of_step(loss_sum=1.5), pp=2) == ["steps: step 1: loss_sum is 1.5 on another stage"]
    assert after(of_step(token_count=0), pp=2) == ["steps: step 1: token_count is 0 on another stage"]


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"grad_norm": None}, "grad_norm is missing"),
        ({"grad_norm": -1.5}, "grad_norm is -1.5"),
        ({"real_tokens": 1}, "1 real tokens in 192 slots, the plan has (165, 192)"),
        ({"slots": 193}, "165 real tokens in 193 slots, the plan has (165, 192)"),
    ],
)
def test_a_step_has_a_gradient_norm_and_the_planned_tokens(fields: dict[str, Any], problem: str) -> None:
    assert after(of_step(**fields), "sft") == [f"steps: step 1: {problem}"]


def test_losses_of_documents_are_recorded_by_one_tp_rank_of_the_last_stage() -> None:
    problem = "steps: step 1: it has losses of documents, which only tp rank 0 of the last stage records"
    assert after(of_step(documents={0: LOSS}), pp=2) == [problem]
    assert after(of_step(documents={0: LOSS}), rank=1, tp=2) == [problem]


def test_losses_of_tokens_are_recorded_in_step_0_by_one_tp_rank() -> None:
    def change(record: RankRecord) -> None:
        record.steps[1].tokens = tokens

    evidence = evidence_for(config_of("reference", pp=2))
    tokens = at(evidence, pp=1)[0].steps[0].tokens[:1]
    only_first = "steps: step 1: it has losses of tokens, which only step 0 records"
    assert after(change) == [only_first]
    assert after(change, pp=2) == [
        "steps: step 1: it has losses of documents, which only tp rank 0 of the last stage records",
        only_first,
    ]


def test_losses_are_of_documents_of_the_step_or_of_padding() -> None:
    found = after(lambda record: record.steps[1].documents.update({9: LOSS, 8: LOSS, PAD: LOSS}))
    assert found == ["steps: step 1: there is no document 8"]


def test_positions_of_a_model_with_vision_have_three_axes_on_every_stage() -> None:
    plain = config_of("unpacked", pp=2)
    evidence = evidence_for(replace(plain, model=replace(plain.model, vision=VisionConfig())))
    assert f"{WHERE}: position_ids has shape [1, 64] and no mismatch; the plan has [3, 1, 64]" in problems_of(evidence)
    assert f"{WHERE} has no position_ids" in problems_of(evidence, rank=1)
