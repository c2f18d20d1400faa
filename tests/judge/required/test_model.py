from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from harness.core.cell.config import CellConfig
from harness.core.run.records import LegSeen, RankRecord
from harness.core.run.tensor_records import ParameterSeen
from harness.judge.evidence.cell_evidence import CellEvidence
from harness.judge.required import model
from harness.judge.required.expected import Expected
from tests.judge.parts import with_predictions, with_routers
from tests.judge.simulator import config_of, evidence_for

CANARIES = ("determinism", "order")


def problems_of(evidence: CellEvidence, rank: int = 0) -> list[str]:
    return list(model.problems(Expected(evidence), evidence.records[rank]))


def differing(evidence: CellEvidence) -> list[str]:
    return list(model.disagreements(Expected(evidence), evidence.records))


def after(change: Callable[[RankRecord], object], rank: int = 0, **keys: Any) -> list[str]:
    """Problems of a rank after a change of its record."""
    evidence = evidence_for(config_of("sft", **keys))
    change(evidence.records[rank])
    return problems_of(evidence, rank)


def without_fingerprints(config: CellConfig) -> CellEvidence:
    """A cell that records no fingerprints in step 0."""
    return evidence_for(replace(config, fingerprints=False))


@pytest.mark.parametrize(
    "make",
    [
        lambda: evidence_for(config_of("sft", tp=2, pp=2)),
        lambda: evidence_for(config_of("reference", pp=2, vpp=2, canaries=CANARIES)),
        lambda: evidence_for(config_of("reference", tp=2, sp=False, canaries=CANARIES)),
        lambda: without_fingerprints(config_of("sft", canaries=CANARIES)),
        lambda: with_routers(pp=2),
        lambda: with_routers(pp=2, aux_loss="none"),
        lambda: with_predictions(depths=2, pp=2),
    ],
)
def test_clean_evidence_has_no_problem(make: Callable[[], CellEvidence]) -> None:
    evidence = make()
    assert [problem for rank in evidence.records for problem in problems_of(evidence, rank)] == []
    assert differing(evidence) == []


def test_activations_are_recorded_of_every_layer_of_the_stage() -> None:
    missing = "activations: recorded for layers [0, 1, 2, 3], expected for [0, 1, 2, 3, 4]"
    assert after(lambda record: record.activations.pop()) == [missing]
    found = after(lambda record: record.activations.insert(0, record.activations[0]), pp=2, rank=1)
    assert found == ["activations: recorded for layers [3, 3, 4], expected for [3, 4]"]


def test_without_sequence_parallel_only_tp_rank_0_records_activations() -> None:
    evidence = evidence_for(config_of("sft", tp=2, sp=False))
    evidence.records[1].activations = evidence.records[0].activations
    assert problems_of(evidence, 1) == ["activations: recorded for layers [0, 1, 2, 3, 4], expected for []"]


def without_updates(record: RankRecord) -> list[ParameterSeen]:
    """The parameters of the training leg as a leg without an optimizer has them."""
    return [replace(seen, update=None, in_norm=None) for seen in record.parameters]


def test_only_the_training_leg_has_updates() -> None:
    found = after_leg("determinism", lambda leg, record: setattr(leg, "parameters", record.parameters))
    assert len(found) == 30
    assert all(problem.endswith((" has an update in a leg", " has in_norm in a leg")) for problem in found)


def test_a_cell_without_fingerprints_records_neither_activations_nor_parameters() -> None:
    evidence, other = without_fingerprints(config_of("sft")), evidence_for(config_of("sft"))
    assert problems_of(evidence) == []
    evidence.records[0].activations = other.records[0].activations
    evidence.records[0].parameters = other.records[0].parameters
    assert problems_of(evidence) == [
        "activations: recorded for layers [0, 1, 2, 3, 4], expected for []",
        "parameters: 15 recorded, none expected",
    ]


def test_every_layer_sees_the_same_documents() -> None:
    found = after(lambda record: record.activations[3].documents.pop(5))
    assert found == [
        "activations: layer 3 has documents [0, 1, 2, 3, 4, 6, 7], layer 0 of the rank [0, 1, 2, 3, 4, 5, 6, 7]"
    ]


def drop_layer(record: RankRecord, layer: int) -> None:
    record.parameters = [item for item in record.parameters if f"layers.{layer - 1}." not in item.name]


def rename(old: str, new: str) -> Callable[[RankRecord], None]:
    def change(record: RankRecord) -> None:
        for item in record.parameters:
            item.name = item.name.replace(old, new)

    return change


@pytest.mark.parametrize(
    ("layout", "rank", "change", "problem"),
    [
        ({}, 0, lambda record: record.parameters.clear(), "0 recorded, some expected"),
        (
            {},
            0,
            lambda record: record.parameters.append(record.parameters[1]),
            "decoder.layers.0.self_attention.linear_qkv.weight is listed twice",
        ),
        ({"pp": 2}, 1, lambda record: drop_layer(record, 3), "recorded for layers [4], stage 1 has [3, 4]"),
        ({"pp": 2}, 1, rename("layers.3", "layers.7"), "recorded for layers [3, 8], stage 1 has [3, 4]"),
        ({}, 0, lambda record: record.parameters.pop(0), "the first stage has no embedding"),
        ({"pp": 2}, 1, lambda record: record.parameters.pop(), "the last stage has no output layer"),
        (
            {},
            0,
            lambda record: setattr(record.parameters[1], "sharded", True),
            "decoder.layers.0.self_attention.linear_qkv.weight is sharded over tp, but tp is 1",
        ),
        (
            {"tp": 2},
            1,
            lambda record: record.parameters[0].parts.append(record.parameters[0].gradient),
            "embedding.word_embeddings.weight has parts, which only a single rank records",
        ),
    ],
)
def test_parameters_are_those_of_the_stage(
    layout: dict[str, int], rank: int, change: Callable[[RankRecord], object], problem: str
) -> None:
    assert after(change, rank, **layout) == [f"parameters: {problem}"]


def test_an_embedding_may_be_the_output_layer() -> None:
    assert after(lambda record: record.parameters.pop()) == []
    assert after(rename("output_layer.", "embedding."), rank=1, pp=2) == []


def after_leg(name: str, change: Callable[[LegSeen, RankRecord], object], **layout: int) -> list[str]:
    """Problems of rank 0 after a change of one canary leg, without its name."""

    def change_leg(record: RankRecord) -> None:
        (leg,) = (leg for leg in record.legs if leg.leg == name)
        change(leg, record)

    prefix = f"legs: {name}: "
    found = after(change_leg, canaries=CANARIES, **layout)
    assert all(problem.startswith(prefix) for problem in found), found
    return [problem.removeprefix(prefix) for problem in found]


OTHERS = "has documents [0, 1, 2, 3, 4, 6, 7], layer 0 of the rank [0, 1, 2, 3, 4, 5, 6, 7]"


@pytest.mark.parametrize(
    ("name", "change", "problem"),
    [
        (
            "determinism",
            lambda leg, _: leg.activations.pop(0),
            "activations: recorded for layers [1, 2, 3, 4], expected for [0, 1, 2, 3, 4]",
        ),
        (
            "order",
            lambda leg, record: leg.activations.append(record.activations[0]),
            "activations: recorded for layers [0], expected for []",
        ),
        ("determinism", lambda leg, _: leg.activations[2].documents.pop(5), f"activations: layer 2 {OTHERS}"),
        (
            "order",
            lambda leg, record: leg.parameters.extend(without_updates(record)),
            "parameters: 15 recorded, none expected",
        ),
        ("determinism", lambda leg, _: leg.parameters.pop(3), "parameters: not those of step 0"),
        (
            "determinism",
            lambda leg, record: setattr(leg, "parameters", without_updates(record)[::-1]),
            "parameters: not those of step 0",
        ),
    ],
)
def test_a_leg_records_what_its_passes_give(
    name: str, change: Callable[[LegSeen, RankRecord], object], problem: str
) -> None:
    assert after_leg(name, change) == [problem]


def test_a_leg_with_a_backward_pass_records_parameters() -> None:
    assert after_leg("determinism", lambda leg, _: leg.parameters.clear()) == [
        "parameters: 0 recorded, some expected",
        "parameters: not those of step 0",
    ]


def test_without_fingerprints_the_parameters_of_a_leg_are_compared_with_none() -> None:
    evidence = without_fingerprints(config_of("sft", canaries=("determinism",)))
    evidence.records[0].legs[0].parameters.pop(3)
    assert problems_of(evidence) == []


def test_without_fingerprints_the_layers_of_a_leg_are_compared_with_each_other() -> None:
    evidence = without_fingerprints(config_of("sft", canaries=("determinism",)))
    evidence.records[0].legs[0].activations[2].documents.pop(5)
    assert problems_of(evidence) == [f"legs: determinism: activations: layer 2 {OTHERS}"]


def test_ranks_of_a_stage_hold_the_same_parameters() -> None:
    name = "decoder.layers.0.input_layernorm.weight"
    evidence = evidence_for(config_of("sft", dp=2))
    del evidence.records[1].parameters[3]
    assert differing(evidence) == [f"record of rank 1: parameters: {name} differs from rank 0 of its stage"]


@pytest.mark.parametrize("change", [lambda names: names.reverse(), lambda names: names.append(names[0])])
def test_ranks_of_a_stage_hold_their_parameters_in_the_same_order_and_number(
    change: Callable[[list[ParameterSeen]], None],
) -> None:
    evidence = evidence_for(config_of("sft", tp=2, pp=2))
    names = evidence.records[3].parameters
    change(names)
    assert differing(evidence) == [f"record of rank 3: parameters: {names[0].name} differs from rank 2 of its stage"]


def test_sharding_is_the_same_on_all_ranks_of_a_stage() -> None:
    evidence = evidence_for(config_of("sft", tp=2))
    evidence.records[1].parameters[3].sharded = True
    name = "decoder.layers.0.input_layernorm.weight"
    assert differing(evidence) == [f"record of rank 1: parameters: {name} differs from rank 0 of its stage"]


def of_expert(number: int) -> str:
    return f"decoder.layers.0.mlp.experts.{number}.weight"


def test_ranks_hold_different_experts_and_together_those_of_the_control() -> None:
    evidence = evidence_for(config_of("sft", dp=2))
    assert evidence.control is not None
    for number, record in enumerate([*evidence.records.values(), evidence.control.records[0]]):
        record.parameters[3].name = of_expert(number % 2)
    extra = replace(evidence.control.records[0].parameters[3], name=of_expert(1))
    evidence.control.records[0].parameters.append(extra)
    assert differing(evidence) == []


def with_extra(*, in_cell: str = "", in_control: str = "", tied: bool = False) -> CellEvidence:
    """A cell or a control with one parameter more."""
    config = config_of("sft")
    evidence = evidence_for(replace(config, model=replace(config.model, tied=tied)))
    assert evidence.control is not None
    for item, name in ((evidence, in_cell), (evidence.control, in_control)):
        if name:
            item.records[0].parameters.append(replace(item.records[0].parameters[0], name=name))
    return evidence


def test_a_cell_holds_the_parameters_of_the_control() -> None:
    assert differing(with_extra(in_control="a.weight")) == [
        "parameters: no rank holds a.weight; the cell has 15, the control 16"
    ]
    assert differing(with_extra(in_cell="a.weight")) == [
        "parameters: the control does not hold a.weight; the cell has 16, the control 15"
    ]
    assert differing(with_extra(in_cell="output_layer.bias")) == [
        "parameters: the control does not hold output_layer.bias; the cell has 16, the control 15"
    ]


def test_a_tied_output_layer_may_be_a_copy() -> None:
    assert differing(with_extra(in_cell="output_layer.copy", tied=True)) == []
    assert differing(with_extra(in_control="output_layer.copy", tied=True)) == []


def test_parameters_are_compared_if_cell_and_control_record_them() -> None:
    evidence = with_extra(in_cell="a.weight")
    control = evidence.control
    assert control is not None
    control.cell = replace(control.cell, config=replace(control.cell.config, fingerprints=False))
    assert differing(evidence) == []
    evidence.control = None
    assert differing(evidence) == []
    evidence = with_extra(in_cell="a.weight")
    evidence.cell = replace(evidence.cell, config=replace(evidence.cell.config, fingerprints=False))
    assert differing(evidence) == []


def test_a_record_that_has_updates_states_of_every_parameter_whether_the_norm_counts_it() -> None:
    def unknown(record: RankRecord) -> None:
        record.parameters = [replace(seen, in_norm=None) for seen in record.parameters]

    found = after(unknown)
    assert len(found) == 15 and all(problem.endswith(" has no in_norm") for problem in found)
