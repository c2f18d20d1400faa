from __future__ import annotations

from dataclasses import replace

import pytest

from harness.core.outcomes import Outcome, Severity
from harness.core.run.records import TensorSeen
from harness.judge.diagnosis import fault_classes
from tests.judge.simulator import at, config_of, evidence_for, judge, place_of, the_only_finding


def _tensor(mismatches: int = 0, first: list[int] | None = None) -> TensorSeen:
    return TensorSeen(shape=[1, 64], dtype="torch.int64", mismatches=mismatches, first=first)


@pytest.mark.parametrize(
    ("field", "stage", "chunk"), [("tokens", 0, 0), ("position_ids", 0, 0), ("labels", 1, 1), ("loss_mask", 1, 1)]
)
def test_a_field_missing_where_it_is_needed(field: str, stage: int, chunk: int) -> None:
    evidence = evidence_for(config_of(pp=2, vpp=2))
    [record] = at(evidence, pp=stage)
    setattr(next(batch for batch in record.batches if batch.chunk == chunk and batch.micro_batch == 1), field, None)
    finding = the_only_finding(evidence, "tokens_placed")
    assert place_of(finding, "stage", "chunk", "micro_batch", "field") == (stage, chunk, 1, field)


@pytest.mark.parametrize("stage", [0, 1])
def test_a_mask_of_padding_is_on_every_stage_with_the_plan_s_slots(stage: int) -> None:
    evidence = evidence_for(config_of("scheduler", pp=2))
    assert judge(evidence).findings == []
    [record] = at(evidence, pp=stage)
    record.batches[1].padding_mask = TensorSeen(shape=[1, 64], dtype="torch.bool", mismatches=2, first=[-1, 5, 1, 0])
    finding = the_only_finding(evidence, "tokens_placed")
    assert "2 slots of padding_mask differ" in finding.message and "padding slot 5 is 0, expected 1" in finding.message
    record.batches[1].padding_mask = None
    finding = the_only_finding(evidence, "tokens_placed")
    assert (place_of(finding, "stage", "field", "micro_batch"), finding.measured) == (
        (stage, "padding_mask", 1),
        "missing",
    )


def test_wrong_content_names_document_and_token() -> None:
    evidence = evidence_for(config_of("sft", tp=2))
    [record] = at(evidence, tp=1)
    record.batches[0].labels = _tensor(mismatches=5, first=[2, 3, 11, 99])
    finding = the_only_finding(evidence, "tokens_placed")
    assert place_of(finding, "tp", "micro_batch", "field", "document", "token") == (1, 0, "labels", 2, 3)
    assert (finding.measured, finding.bound) == (99, 11)
    assert finding.fault_class == fault_classes.TOKEN_CONTENT


def test_a_log_prob_of_another_token_names_both_slots() -> None:
    evidence = evidence_for(config_of("skyrl", cp=2))
    assert judge(evidence).outcome is Outcome.PASS
    [record] = at(evidence, cp=1)
    record.batches[0].log_probs = _tensor(mismatches=5, first=[2, 3, 11, 7])
    finding = the_only_finding(evidence, "tokens_placed")
    assert place_of(finding, "cp", "micro_batch", "field", "document", "token") == (1, 0, "log_probs", 2, 3)
    assert (finding.measured, finding.bound) == (7, 11)


def test_skyrls_worker_gives_the_model_no_positions() -> None:
    config = replace(config_of("skyrl", pp=2), trainer="skyrl", distributed_optimizer="on", micro_batch_size=2)
    evidence = evidence_for(config)
    for record in evidence.records.values():
        for batch in record.batches:
            batch.position_ids = None
    assert judge(evidence).outcome is Outcome.PASS
    [record] = at(evidence, pp=1)
    record.batches[0].labels = None
    assert place_of(the_only_finding(evidence, "tokens_placed"), "stage", "field") == (1, "labels")


@pytest.mark.parametrize(
    ("fields", "fault_class"),
    [
        (("tokens", "position_ids", "labels"), fault_classes.CP_LAYOUT),
        (("labels",), fault_classes.CP_LAYOUT),  # rolled after the split: wrong at the edge of a chunk
        (("position_ids",), fault_classes.TOKEN_CONTENT),
        (("tokens", "labels"), fault_classes.TOKEN_CONTENT),
    ],
)
def test_a_wrong_split_over_context_ranks_moves_every_field(fields: tuple[str, ...], fault_class: str) -> None:
    evidence = evidence_for(config_of("sft", cp=2))
    [record] = at(evidence, cp=1)
    for field in fields:
        setattr(record.batches[0], field, _tensor(mismatches=8, first=[2, 4, 11, 20]))
    finding = next(one for one in judge(evidence).findings if one.check == "tokens_placed")
    assert place_of(finding, "cp", "document") == (1, 2)
    assert finding.fault_class == fault_class


def test_tokens_on_a_stage_that_does_not_use_them_are_a_warning() -> None:
    evidence = evidence_for(config_of("sft", pp=4))
    for record in at(evidence, pp=2):
        for batch in record.batches:
            batch.tokens = _tensor()
    verdict = judge(evidence)
    assert verdict.outcome is Outcome.PASS
    [finding] = verdict.findings
    assert (finding.check, finding.severity) == ("tokens_placed", Severity.WARNING)
    assert finding.where["stages"] == [2]


def test_an_unpacked_batch_that_was_never_fetched() -> None:
    evidence = evidence_for(config_of("unpacked", pp=2))
    [record] = at(evidence, pp=1)
    record.batches = record.batches[:-1]
    finding = the_only_finding(evidence, "tokens_placed")
    assert place_of(finding, "stage", "field", "micro_batch") == (1, "labels", len(evidence.plan[0][0]) - 1)


def test_a_wrong_shape_and_a_wrong_padding_slot_are_named() -> None:
    evidence = evidence_for(config_of("sft"))
    batch = evidence.records[0].batches[0]
    batch.tokens = TensorSeen(shape=[1, 32], dtype="torch.int64", mismatches=64)
    assert "its shape is [1, 32]" in the_only_finding(evidence, "tokens_placed").message
    batch.tokens = _tensor()
    batch.loss_mask = _tensor(mismatches=3, first=[-1, 4, 0, 1])
    assert "padding slot 4 is 1, expected 0" in the_only_finding(evidence, "tokens_placed").message


@pytest.mark.parametrize(
    ("field", "dtype", "right"),
    [
        ("loss_mask", "torch.float16", "torch.float32 or torch.float64"),
        ("labels", "torch.float32", "torch.int64 or torch.int32"),
    ],
)
def test_right_content_in_a_dtype_that_upstream_does_not_use_is_a_finding(field: str, dtype: str, right: str) -> None:
    evidence = evidence_for(config_of("sft", tp=2))
    for batch in evidence.records[1].batches:
        setattr(batch, field, replace(getattr(batch, field), dtype=dtype))
    finding = the_only_finding(evidence, "tokens_placed")
    assert finding.message.startswith(f"{field} is {dtype}, not {right}, at stage 0, tp 1")
    assert (finding.measured, finding.where["field"]) == (dtype, field)
