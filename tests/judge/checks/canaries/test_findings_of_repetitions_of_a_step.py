"""Findings about a step that runs again, compared whole."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import pytest

from harness.core.cell.model import ModelConfig
from harness.core.run.tensor_records import Fingerprint
from harness.features.experts.config import MoeConfig
from harness.judge.checks import canaries
from harness.judge.evidence.cell_evidence import CellEvidence
from tests.judge.checks.whole import Cases, of, with_canary
from tests.judge.simulator import at, config_of, evidence_for, leg_of

cases = Cases()


def set_loss(evidence: CellEvidence, leg: str, document: int, before: float, after: float) -> None:
    """The loss sum of a document in step 0 and in a leg, on the only rank of the last stage that has one."""
    record = at(evidence, pp=evidence.last_stage, tp=0, cp=0)[0]
    record.steps[0].documents[document].loss_sum = before
    leg_of(record, leg).documents[document].loss_sum = after


def set_to(fingerprint: Fingerprint, norm_sq: float) -> None:
    fingerprint.norm_sq, fingerprint.projections = norm_sq, [0.0, 0.0]


def on_gpu(evidence: CellEvidence) -> CellEvidence:
    for record in evidence.records.values():
        record.environment = record.environment | {"device": "NVIDIA H200"}
    return evidence


@cases(canaries.determinism)
def an_activation_of_a_later_rank_but_an_earlier_layer_comes_first() -> CellEvidence:
    evidence = with_canary("determinism", pp=2, vpp=2)
    for rank, layer in ((0, 3), (1, 2)):
        seen = leg_of(evidence.records[rank], "determinism").activations
        found = next(item for item in seen if item.layer == layer)
        found.documents[6].norm_sq *= 4.0
    return evidence


@cases(canaries.determinism)
def a_loss_before_a_gradient() -> CellEvidence:
    evidence = with_canary("determinism", tp=2, pp=2)
    set_loss(evidence, "determinism", 5, 8.0, 8.5)
    leg_of(at(evidence, pp=1, tp=0)[0], "determinism").parameters[3].gradient.norm_sq *= 4
    return evidence


@cases(canaries.determinism)
def a_gradient_that_differs_in_a_bit_that_its_norm_does_not_show() -> CellEvidence:
    evidence = with_canary("determinism", tp=2)
    evidence.records[1].parameters[3].gradient.norm_sq = 1.0
    leg_of(evidence.records[1], "determinism").parameters[3].gradient.norm_sq = math.nextafter(1.0, 2.0)
    return evidence


@cases(canaries.determinism)
def gradients_that_are_not_finite() -> CellEvidence:
    evidence = with_canary("determinism")
    again = leg_of(evidence.records[0], "determinism").parameters
    evidence.records[0].parameters[2].gradient.norm_sq = math.nan
    again[3].gradient.norm_sq = math.inf
    return evidence


@cases(canaries.determinism)
def a_parameter_and_a_layer_that_were_not_recorded_again() -> CellEvidence:
    evidence = with_canary("determinism")
    again = leg_of(evidence.records[0], "determinism")
    del again.parameters[2], again.activations[1], again.activations[0].documents[3]
    return evidence


@cases(canaries.determinism)
def a_first_step_that_is_not_whole() -> CellEvidence:
    evidence = with_canary("determinism")
    set_loss(evidence, "determinism", 5, 8.0, 8.5)
    evidence.records[0].steps = evidence.records[0].steps[1:]
    return evidence


@cases(canaries.determinism)
def a_difference_on_a_gpu_beyond_the_bound() -> CellEvidence:
    evidence = on_gpu(with_canary("determinism"))
    seen = leg_of(evidence.records[0], "determinism")
    seen.activations[0].documents[0].norm_sq *= 1 + 1e-5
    seen.activations[1].documents[0].norm_sq *= 1 + 1e-3
    seen.parameters[2].gradient.norm_sq *= 1 + 1e-5
    seen.parameters[3].gradient.norm_sq *= 1 + 1e-3
    return evidence


@cases(canaries.determinism)
def a_gradient_on_a_gpu_that_is_rounding_noise() -> CellEvidence:
    evidence = on_gpu(with_canary("determinism"))
    name = evidence.records[0].parameters[3].name
    evidence.tolerances = replace(evidence.tolerances, noise_only=frozenset({name}))
    for gradient in (
        evidence.records[0].parameters[3].gradient,
        leg_of(evidence.records[0], "determinism").parameters[3].gradient,
    ):
        gradient.norm_sq, gradient.projections = 1e-12, [1e-6, 1e-6]
    leg_of(evidence.records[0], "determinism").parameters[3].gradient.norm_sq = 4e-12
    return evidence


@cases(canaries.determinism)
def the_first_layer_that_differs_on_two_ranks() -> CellEvidence:
    evidence = with_canary("determinism", cp=2)
    for rank, layer, document in ((0, 2, 6), (0, 4, 3), (1, 2, 5)):
        seen = leg_of(evidence.records[rank], "determinism").activations
        next(item for item in seen if item.layer == layer).documents[document].norm_sq *= 4.0
    return evidence


@cases(canaries.determinism)
def a_cell_with_experts_gets_the_same_tokens_again() -> CellEvidence:
    config = replace(config_of("reference", canaries=("determinism",)), model=ModelConfig(layers=2, moe=MoeConfig()))
    evidence = evidence_for(config)
    record, again = evidence.records[0], leg_of(evidence.records[0], "determinism")
    least = 1 + 2**-40
    set_to(record.activations[0].documents[0], 1.0)
    set_to(again.activations[0].documents[0], least)
    set_to(record.parameters[3].gradient, 1.0)
    set_to(again.parameters[3].gradient, least)
    set_loss(evidence, "determinism", 5, 1.0, least)
    return evidence


@cases(canaries.determinism)
def a_small_activation_on_a_gpu() -> CellEvidence:
    evidence = on_gpu(with_canary("determinism"))
    set_to(evidence.records[0].activations[0].documents[0], 1e-6)
    set_to(leg_of(evidence.records[0], "determinism").activations[0].documents[0], 4e-6)
    return evidence


@cases(canaries.determinism)
def a_small_gradient_on_a_gpu() -> CellEvidence:
    evidence = on_gpu(with_canary("determinism"))
    set_to(evidence.records[0].parameters[3].gradient, 1e-6)
    set_to(leg_of(evidence.records[0], "determinism").parameters[3].gradient, 4e-6)
    return evidence


@cases(canaries.determinism)
def a_cell_without_canaries() -> CellEvidence:
    return of()


@pytest.mark.parametrize("check", cases.of)
def test_a_canary_states_what_is_wrong_and_where(check: str, golden: Callable[[str, str], None]) -> None:
    golden(f"findings/{check}.txt", cases.text(check))
