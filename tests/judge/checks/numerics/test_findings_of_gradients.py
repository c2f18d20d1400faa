"""Findings about gradients, compared whole."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from harness.core.run.tensor_records import Fingerprint
from harness.core.tolerances import Bound
from harness.judge.checks import gradients
from harness.judge.evidence.cell_evidence import CellEvidence
from tests.judge.checks.whole import Cases, absolute, of, of_other_rows, off, tight
from tests.judge.simulator import config_of, evidence_for

cases = Cases()


@cases(gradients.grad_norm)
def norms_times_the_context_parallel_size_in_the_second_step() -> CellEvidence:
    evidence = of(cp=2, pp=2)
    for record in evidence.records.values():
        record.steps[1].grad_norm = 6.0
    return evidence


@cases(gradients.grad_norm)
def a_norm_of_one_rank() -> CellEvidence:
    evidence = of(tp=2, pp=2)
    evidence.records[2].steps[0].grad_norm = 2.2
    evidence.records[3].steps[1].grad_norm = 3.3
    return evidence


@cases(gradients.grad_norm)
def a_norm_where_the_control_has_none() -> CellEvidence:
    evidence = of()
    assert evidence.control is not None
    evidence.control.records[0].steps[0].grad_norm = 0.0
    return evidence


@cases(gradients.grad_norm)
def a_norm_that_no_rank_recorded() -> CellEvidence:
    evidence = of(tp=2)
    for record in evidence.records.values():
        record.steps[1].grad_norm = None
    return evidence


@cases(gradients.grad_norm)
def a_norm_that_only_one_rank_recorded() -> CellEvidence:
    evidence = of(tp=2)
    evidence.records[1].steps[1].grad_norm = None
    evidence.records[0].steps[0].grad_norm = math.nan
    return evidence


@cases(gradients.grad_norm)
def ranks_of_other_rows_that_differ() -> CellEvidence:
    evidence = of_other_rows(tp=2)
    evidence.records[0].steps[0].grad_norm = evidence.records[1].steps[0].grad_norm = 7.0
    evidence.records[1].steps[1].grad_norm = 3.3
    return evidence


@cases(gradients.grad_norm)
def norms_of_a_step_that_a_rank_of_the_last_stage_did_not_finish() -> CellEvidence:
    evidence = of(pp=2)
    evidence.records[0].steps[1].grad_norm = None
    evidence.records[1].steps = evidence.records[1].steps[:1]
    return evidence


def gradient(evidence: CellEvidence, rank: int, name: str) -> Any:
    return next(seen for seen in evidence.records[rank].parameters if seen.name == name).gradient


@cases(gradients.parameter_gradients)
def a_shard_of_one_rank() -> CellEvidence:
    evidence = of(tp=2, pp=2)
    off(gradient(evidence, 3, "decoder.layers.2.mlp.linear_fc1.weight"), 1.5)
    return evidence


@cases(gradients.parameter_gradients)
def the_embedding_and_a_norm_weight() -> CellEvidence:
    evidence = of()
    off(gradient(evidence, 0, "embedding.word_embeddings.weight"), 1.5)
    off(gradient(evidence, 0, "decoder.final_layernorm.weight"), 1.7)
    return evidence


@cases(gradients.parameter_gradients)
def gradients_of_the_only_step_times_the_context_parallel_size() -> CellEvidence:
    config = config_of("sft", cp=2)
    evidence = evidence_for(replace(config, train=replace(config.train, steps=1)))
    for record in evidence.records.values():
        for seen in record.parameters:
            off(seen.gradient, 2.0)
    return evidence


@cases(gradients.parameter_gradients)
def a_parameter_that_was_not_recorded_and_one_that_is_twice_as_large() -> CellEvidence:
    evidence = of(cp=2)
    for record in evidence.records.values():
        off(record.parameters[7].gradient, 2.0)
        del record.parameters[4]
    return evidence


@cases(gradients.parameter_gradients)
def a_parameter_that_the_control_does_not_have() -> CellEvidence:
    evidence = of()
    evidence.records[0].parameters[3].name = "decoder.layers.9.new.weight"
    assert evidence.control is not None
    del evidence.control.records[0].parameters[3]
    return evidence


@cases(gradients.parameter_gradients)
def no_parameters_at_all() -> CellEvidence:
    evidence = of()
    assert evidence.control is not None
    for records in (evidence.records, evidence.control.records):
        records[0].parameters = []
    return evidence


@cases(gradients.parameter_gradients)
def gradients_that_are_not_finite_or_of_other_rows() -> CellEvidence:
    evidence = of()
    evidence.records[0].parameters[3].gradient.norm_sq = math.nan
    return evidence


@cases(gradients.parameter_gradients)
def gradients_of_other_rows() -> CellEvidence:
    evidence = of_other_rows()
    off(evidence.records[0].parameters[3].gradient, 2.0)
    return evidence


@cases(gradients.replica_gradients)
def copies_on_two_ranks() -> CellEvidence:
    evidence = of(tp=2, dp=2)
    for rank, number in ((2, 1), (3, 1), (3, 3)):
        off(evidence.records[rank].parameters[number].gradient, 1.5)
    return evidence


@cases(gradients.replica_gradients)
def a_norm_weight_of_a_tensor_parallel_rank() -> CellEvidence:
    evidence = of(tp=2, pp=2)
    seen = next(seen for seen in evidence.records[3].parameters if not seen.sharded)
    off(seen.gradient, 1.5)
    return evidence


@cases(gradients.replica_gradients)
def copies_that_differ_by_less_than_the_bound_or_are_not_finite() -> CellEvidence:
    evidence = of(dp=2)
    off(evidence.records[1].parameters[1].gradient, 1 + 1e-6)
    evidence.records[1].parameters[2].gradient.norm_sq = math.inf
    evidence.records[0].parameters[3].gradient.norm_sq = math.inf
    return evidence


@cases(gradients.grad_norm)
def a_norm_beyond_a_bound_of_the_first_step() -> CellEvidence:
    evidence = tight(of(), "grad_norm")
    evidence.records[0].steps[0].grad_norm = 2.0 + 2e-6
    return evidence


def make_small(gradient: Fingerprint, norm_sq: float) -> None:
    gradient.norm_sq, gradient.projections = norm_sq, [0.0, 0.0]


def with_a_small_gradient() -> CellEvidence:
    """A cell of which a gradient is tiny, and twice as large as that of its control."""
    evidence = of()
    assert evidence.control is not None
    make_small(evidence.records[0].parameters[4].gradient, 4e-12)
    make_small(evidence.control.records[0].parameters[4].gradient, 1e-12)
    return evidence


@cases(gradients.parameter_gradients)
def a_small_gradient() -> CellEvidence:
    return with_a_small_gradient()


@cases(gradients.parameter_gradients)
def a_gradient_that_is_rounding_noise() -> CellEvidence:
    return with_noise(with_a_small_gradient())


@cases(gradients.parameter_gradients)
def tied_embeddings_have_a_second_name() -> CellEvidence:
    evidence = of()
    config = replace(evidence.cell.config, model=replace(evidence.cell.config.model, tied=True))
    evidence.cell = replace(evidence.cell, config=config)
    assert evidence.control is not None
    evidence.control.cell = replace(
        evidence.control.cell,
        config=replace(evidence.control.cell.config, model=replace(evidence.control.cell.config.model, tied=True)),
    )
    del evidence.control.records[0].parameters[-1]
    return evidence


def with_noise(evidence: CellEvidence) -> CellEvidence:
    name = evidence.records[0].parameters[4].name
    evidence.tolerances = replace(evidence.tolerances, noise_only=frozenset({name}))
    return evidence


def with_small_copies() -> CellEvidence:
    evidence = of(dp=2)
    for rank, norm_sq in ((0, 1e-12), (1, 4e-12)):
        make_small(evidence.records[rank].parameters[4].gradient, norm_sq)
    return evidence


@cases(gradients.replica_gradients)
def small_copies() -> CellEvidence:
    return with_small_copies()


@cases(gradients.replica_gradients)
def copies_that_are_rounding_noise() -> CellEvidence:
    return with_noise(with_small_copies())


@cases(gradients.parameter_gradients)
def a_small_gradient_within_an_absolute_bound() -> CellEvidence:
    return absolute(with_a_small_gradient(), "parameter_gradient")


@cases(gradients.replica_gradients)
def small_copies_within_an_absolute_bound() -> CellEvidence:
    return absolute(with_small_copies(), "parameter_gradient")


@cases(gradients.parameter_gradients)
def an_output_layer_that_the_control_does_not_have() -> CellEvidence:
    evidence = of()
    evidence.records[0].parameters[-1].name = "output_layer.bias"
    assert evidence.control is not None
    del evidence.control.records[0].parameters[-1]
    return evidence


@cases(gradients.parameter_gradients)
def more_parameters_than_are_listed() -> CellEvidence:
    config = config_of("sft")
    evidence = evidence_for(replace(config, model=replace(config.model, layers=6)))
    for number, seen in enumerate(evidence.records[0].parameters):
        off(seen.gradient, 1.5 + 0.2 * number)
    return evidence


@pytest.mark.parametrize("check", cases.of)
def test_a_numerics_check_states_what_is_wrong_and_where(check: str, golden: Callable[[str, str], None]) -> None:
    golden(f"findings/{check}.txt", cases.text(check))


def test_a_bound_of_one_side_is_stated_with_its_side() -> None:
    evidence = of()
    evidence.tolerances = replace(
        evidence.tolerances, grad_norm=Bound(value=0.5, unit="absolute", direction="above", origin="the matrix")
    )
    evidence.records[0].steps[0].grad_norm = 1.0
    assert gradients.grad_norm(evidence) == []
    evidence.records[0].steps[0].grad_norm = 3.0
    (finding,) = gradients.grad_norm(evidence)
    assert "off by 1 > 0.5 absolute, above the expected value only (the matrix)" in finding.message
    assert finding.bound == {"value": 0.5, "unit": "absolute", "direction": "above", "origin": "the matrix"}
