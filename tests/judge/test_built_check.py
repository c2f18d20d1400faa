"""A cell whose ranks built another model than its matrix asks for is ERROR, whatever its numbers say."""

from __future__ import annotations

from dataclasses import replace

import pytest

from harness.core.cell.upstream_config import HARMLESS, Difference, differences
from harness.core.outcomes import LaneVerdict, Outcome
from harness.core.run.records import BuiltSeen, RankRecord
from harness.features.vision.config import VisionConfig
from harness.judge.built_check import built_problem
from harness.judge.evidence.cell_evidence import CellEvidence
from tests.judge.simulator import config_of, drop_params, evidence_for, judge


def part(record: RankRecord, of: str) -> BuiltSeen:
    return next(item for item in record.built if item.of == of)


def built_with(of: str, values: dict[str, str], ranks: tuple[int, ...] = (0, 1)) -> CellEvidence:
    evidence = evidence_for(config_of("sft", tp=2))
    for rank in ranks:
        part(evidence.records[rank], of).values |= values
    return evidence


@pytest.mark.parametrize(
    ("of", "field", "value", "reason"),
    [
        ("model", "kv_channels", "128", "the model is not the matrix's: kv_channels 128, asked 8"),
        (
            "model",
            "layernorm_epsilon",
            "1e-06",
            "the model is not the matrix's: layernorm_epsilon 1e-06, asked 1e-05",
        ),
        (
            "model",
            "cross_entropy_loss_fusion",
            "true",
            "the model is not the matrix's: cross_entropy_loss_fusion true, asked upstream's default",
        ),
        ("constructor", "rotary_base", "5", "the model is not the matrix's: rotary_base 5, asked 10000"),
        (
            "ddp",
            "grad_reduce_in_fp32",
            "false",
            "the DDP configuration is not the matrix's: grad_reduce_in_fp32 false, asked true",
        ),
        ("optimizer", "lr", "0.5", "the optimizer is not the matrix's: lr 0.5, asked 0.001"),
    ],
)
def test_a_field_that_is_not_the_matrixs_is_an_error_with_both_values(
    of: str, field: str, value: str, reason: str
) -> None:
    verdict = judge(built_with(of, {field: value}))
    assert (verdict.outcome, verdict.reason) == (Outcome.ERROR, reason)
    assert set(verdict.lanes.values()) == {LaneVerdict.SKIP}


def test_it_outranks_a_failed_check() -> None:
    evidence = built_with("model", {"kv_channels": "128"})
    for record in evidence.records.values():
        drop_params(record)
    assert judge(evidence).outcome is Outcome.ERROR


def test_the_image_tower_is_recorded_on_the_first_stage_and_is_the_matrixs() -> None:
    plain = config_of("unpacked", pp=2)
    evidence = evidence_for(replace(plain, model=replace(plain.model, vision=VisionConfig())))
    for record in evidence.records.values():
        record.built = [item for item in record.built if item.of != "tower" or record.place.pp == 0]
    assert built_problem(evidence) == ""
    part(evidence.records[0], "tower").values["patch_size"] = "14"
    assert built_problem(evidence) == "the image tower is not the matrix's on rank 0: patch_size 14, asked 2"
    evidence.records[0].built.remove(part(evidence.records[0], "tower"))
    assert built_problem(evidence) == "rank 0 trained, but did not record with what upstream built its tower"


def test_fields_that_may_differ_do_not_change_the_verdict() -> None:
    """The cell has tp 2, its control has not."""
    harmless = {name: "other" for names in HARMLESS.values() for name in names}
    assert judge(built_with("model", harmless)).outcome is Outcome.PASS


def test_numbers_are_equal_however_they_are_written() -> None:
    assert judge(built_with("constructor", {"rotary_base": "10000.0"})).outcome is Outcome.PASS


def test_details_of_experts_do_not_matter_without_experts() -> None:
    detail = {"moe_router_dtype": '"fp32"'}
    assert judge(built_with("model", detail)).outcome is Outcome.PASS
    assert judge(built_with("model", detail | {"num_moe_experts": "4"})).outcome is Outcome.ERROR


def test_a_field_that_differs_between_ranks_is_an_error() -> None:
    reason = "the ranks have different models: rank 1 kv_channels 128, rank 0 8"
    assert judge(built_with("model", {"kv_channels": "128"}, (1,))).reason == reason


def test_a_chunk_that_differs_from_the_one_before_is_an_error() -> None:
    evidence = evidence_for(config_of("sft", tp=2))
    other = part(evidence.records[0], "model")
    evidence.records[0].built.append(BuiltSeen(of="model", values=other.values | {"num_layers": "2"}))
    assert judge(evidence).reason == "the ranks have different models: rank 0 num_layers 2, another chunk of it 4"


@pytest.mark.parametrize("of", ["model", "constructor", "ddp", "optimizer"])
def test_what_nobody_asked_for_is_an_error(of: str) -> None:
    assert judge(built_with(of, {"brand_new": "3"})).reason.endswith("brand_new 3, asked upstream's default")


def test_a_field_that_the_release_lacks_is_off() -> None:
    evidence = built_with("model", {})
    for record in evidence.records.values():
        del part(record, "model").values["softmax_type"]
    assert judge(evidence).outcome is Outcome.PASS
    for record in evidence.records.values():
        del part(record, "model").values["normalization"]
    assert (
        judge(evidence).reason == "the model is not the matrix's: normalization upstream's default, asked \"RMSNorm\""
    )


def test_the_arguments_of_a_model_must_be_recorded() -> None:
    evidence = built_with("model", {})
    for record in evidence.records.values():
        part(record, "constructor").values.clear()
    verdict = judge(evidence)
    assert verdict.outcome is Outcome.ERROR
    assert "vocab_size upstream's default, asked 128" in verdict.reason


def test_another_order_of_ranks_is_an_error_with_both_places() -> None:
    evidence = evidence_for(config_of("sft", pp=2, dp=2))
    places = [record.place for record in evidence.records.values()]
    for rank, other in ((1, 2), (2, 1)):
        evidence.records[rank].built_at = places[other]
    assert judge(evidence).reason == (
        "upstream orders the ranks otherwise than the layout: rank 1 is stage 1, tp 0, cp 0, dp 0, by the layout "
        "stage 0, tp 0, cp 0, dp 1; 2 of 4 ranks differ"
    )


def test_a_rank_that_trained_must_say_with_what() -> None:
    evidence = evidence_for(config_of("sft", tp=2))
    evidence.records[1].built = []
    verdict = judge(evidence)
    assert verdict.outcome is Outcome.ERROR
    assert verdict.reason.startswith("rank 1 trained, but did not record with what upstream built its ")


def test_embeddings_that_are_not_scattered_are_of_another_model() -> None:
    name = "scatter_embedding_sequence_parallel"
    assert differences({name: "false"}, {name: "true"}) == [Difference(name, "false", "true")]
