"""Findings about modules and of cut documents, compared whole."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from harness.core.packing.documents import DocumentsConfig
from harness.core.run.records import TensorSeen
from harness.core.tolerances import Bound
from harness.judge.checks.canaries import rewriting, truncation
from harness.judge.evidence.cell_evidence import CellEvidence
from tests.judge.checks.whole import Cases, absolute, of, off, with_canary
from tests.judge.simulator import at, config_of, evidence_for, leg_of

cases = Cases()


def of_layer(seen: Any, layer: int) -> Any:
    return next(item for item in seen if item.layer == layer)


@cases(rewriting.check)
def two_faulty_forwards_and_a_faulty_backward() -> CellEvidence:
    evidence = with_canary("rewriting", pp=2)
    for stage, layer in ((0, 2), (1, 4)):
        record = at(evidence, pp=stage)[0]
        off(of_layer(leg_of(record, "rewriting").activations, layer).documents[3], 1.01)
        off(of_layer(record.activations, layer).documents[3], 1.01)
    off(of_layer(at(evidence, pp=1)[0].activations, 3).documents[3], 1.01)
    for seen in leg_of(at(evidence, pp=1)[0], "rewriting").parameters:
        if ".2." in seen.name or ".3." in seen.name:
            off(seen.gradient, 1.1)
    return evidence


@cases(rewriting.check)
def a_faulty_embedding() -> CellEvidence:
    evidence = with_canary("rewriting", pp=2)
    off(of_layer(leg_of(evidence.records[0], "rewriting").activations, 0).documents[3], 1.01)
    return evidence


@cases(rewriting.check)
def a_faulty_backward_of_the_embedding() -> CellEvidence:
    evidence = with_canary("rewriting", pp=2)
    off(leg_of(evidence.records[0], "rewriting").parameters[0].gradient, 1.5)
    return evidence


@cases(rewriting.check)
def a_faulty_output() -> CellEvidence:
    evidence = with_canary("rewriting", pp=2)
    leg_of(evidence.records[1], "rewriting").documents[3].loss_sum *= 1.01
    return evidence


@cases(rewriting.check)
def a_faulty_backward_of_the_output() -> CellEvidence:
    evidence = with_canary("rewriting", pp=2)
    off(leg_of(evidence.records[1], "rewriting").parameters[-2].gradient, 1.5)
    off(of_layer(leg_of(evidence.records[1], "rewriting").input_gradients, 5).documents[3], 1.5)
    return evidence


@cases(rewriting.check)
def gradients_of_inputs_alone() -> CellEvidence:
    evidence = with_canary("rewriting", cp=2)
    for record in evidence.records.values():
        off(of_layer(leg_of(record, "rewriting").input_gradients, 3).documents[3], 1.5)
        off(of_layer(leg_of(record, "rewriting").input_gradients, 3).documents[5], 1.6)
    return evidence


@cases(rewriting.check)
def what_was_not_recorded() -> CellEvidence:
    evidence = with_canary("rewriting", pp=2)
    first, last = (leg_of(evidence.records[rank], "rewriting") for rank in (0, 1))
    del of_layer(first.activations, 1).documents[3], first.parameters[4], last.documents[3]
    del of_layer(last.input_gradients, 4).documents[2]
    return evidence


@cases(rewriting.check)
def a_gradient_that_is_not_finite() -> CellEvidence:
    evidence = with_canary("rewriting")
    leg_of(evidence.records[0], "rewriting").parameters[4].gradient.norm_sq = math.nan
    return evidence


@cases(rewriting.check)
def a_first_step_that_no_layer_can_be_compared_in() -> CellEvidence:
    evidence = with_canary("rewriting")
    off(of_layer(leg_of(evidence.records[0], "rewriting").activations, 1).documents[3], 1.01)
    off(of_layer(evidence.records[0].activations, 2).documents[3], 1.01)
    evidence.records[0].steps = evidence.records[0].steps[1:]
    return evidence


@cases(rewriting.check)
def all_gradients_times_the_context_parallel_size() -> CellEvidence:
    return with_scaled_gradients(2.0, 2.0)


@cases(rewriting.check)
def all_gradients_times_another_factor() -> CellEvidence:
    return with_scaled_gradients(1.37, 1.5)


def with_scaled_gradients(factor: float, first: float) -> CellEvidence:
    """A cell of one step whose gradients are off by a factor, those of the first module by another."""
    config = config_of("sft", canaries=("rewriting",), cp=2)
    evidence = evidence_for(replace(config, train=replace(config.train, steps=1)))
    for record in evidence.records.values():
        for number, seen in enumerate(leg_of(record, "rewriting").parameters):
            off(seen.gradient, factor if number else first)
    return evidence


@cases(rewriting.check)
def a_bound_that_a_gradient_is_just_within() -> CellEvidence:
    evidence = with_canary("rewriting")
    evidence.tolerances = replace(evidence.tolerances, parameter_gradient=Bound(value=0.2, origin="the matrix"))
    off(leg_of(evidence.records[0], "rewriting").parameters[4].gradient, 1.19)
    off(leg_of(evidence.records[0], "rewriting").parameters[5].gradient, 1.21)
    return evidence


def truncated(data_path: str = "unpacked") -> CellEvidence:
    """A cell of two replicas that truncates no document in step 0."""
    uncut = DocumentsConfig(mode="file", lengths=(20, 7, 9))
    return evidence_for(replace(config_of(data_path, dp=2, canaries=("truncation",)), documents=uncut))


@cases(truncation.check)
def wrong_slots_on_two_ranks() -> CellEvidence:
    evidence = truncated()
    wrong = TensorSeen(shape=[1, 64], dtype="torch.int64", mismatches=63, first=[3, 2, 17, 99])
    for record in evidence.records.values():
        leg_of(record, "truncation").batches[-1].labels = wrong
    return evidence


@cases(truncation.check)
def a_wrong_shape() -> CellEvidence:
    evidence = truncated()
    wrong = TensorSeen(shape=[1, 60], dtype="torch.int64", mismatches=4)
    leg_of(evidence.records[1], "truncation").batches[0].loss_mask = wrong
    return evidence


@cases(truncation.check)
def packed_params_of_other_documents() -> CellEvidence:
    evidence = truncated("reference")
    record = evidence.records[1]
    batch = leg_of(record, "truncation").batches[0]
    assert batch.params is not None
    record.packed_params.append(replace(record.packed_params[batch.params], max_seqlen_q=7, qkv_format="bshd"))
    batch.params = len(record.packed_params) - 1
    return evidence


@cases(truncation.check)
def a_tensor_on_another_device() -> CellEvidence:
    evidence = truncated("reference")
    record = evidence.records[1]
    batch = leg_of(record, "truncation").batches[0]
    assert batch.params is not None
    seen = record.packed_params[batch.params]
    forms = seen.forms | {"cu_seqlens_kv": replace(seen.forms["cu_seqlens_kv"], device="cuda:0")}
    record.packed_params.append(replace(seen, forms=forms))
    batch.params = len(record.packed_params) - 1
    return evidence


@cases(truncation.check)
def a_batch_without_params_and_one_that_the_plan_does_not_have() -> CellEvidence:
    evidence = truncated("reference")
    batches = leg_of(evidence.records[1], "truncation").batches
    batches[0].params = None
    batches += [replace(batches[-1], micro_batch=number) for number in (-1, len(batches))]
    return evidence


@cases(rewriting.check)
def all_gradients_in_another_direction() -> CellEvidence:
    evidence = with_canary("rewriting", cp=2)
    for record in evidence.records.values():
        for seen in leg_of(record, "rewriting").parameters:
            seen.gradient.projections = [-value for value in seen.gradient.projections]
    return evidence


@cases(rewriting.check)
def the_last_layer_only_inherits_the_error() -> CellEvidence:
    evidence = with_canary("rewriting")
    off(of_layer(leg_of(evidence.records[0], "rewriting").activations, 2).documents[3], 1.01)
    for layer in (2, 3, 4):
        off(of_layer(evidence.records[0].activations, layer).documents[3], 1.01)
    return evidence


@cases(rewriting.check)
def the_last_layer_is_faulty() -> CellEvidence:
    evidence = with_canary("rewriting")
    off(of_layer(leg_of(evidence.records[0], "rewriting").activations, 4).documents[3], 1.01)
    return evidence


@cases(rewriting.check)
def a_layer_that_was_not_recorded() -> CellEvidence:
    evidence = with_canary("rewriting")
    seen = leg_of(evidence.records[0], "rewriting")
    seen.activations = [item for item in seen.activations if item.layer != 3]
    seen.input_gradients = [item for item in seen.input_gradients if item.layer != 2]
    return evidence


@cases(rewriting.check)
def a_layer_that_the_control_did_not_record() -> CellEvidence:
    evidence = with_canary("rewriting")
    assert evidence.control is not None
    seen = leg_of(evidence.control.records[0], "rewriting")
    seen.activations = [item for item in seen.activations if item.layer != 3]
    return evidence


def with_a_small_gradient() -> CellEvidence:
    """A cell and its control of which a gradient is tiny, and twice as large in the cell."""
    evidence = with_canary("rewriting")
    assert evidence.control is not None
    for item, norm_sq in ((evidence, 4e-12), (evidence.control, 1e-12)):
        gradient = leg_of(item.records[0], "rewriting").parameters[4].gradient
        gradient.norm_sq, gradient.projections = norm_sq, [0.0, 0.0]
    return evidence


@cases(rewriting.check)
def a_small_gradient() -> CellEvidence:
    return with_a_small_gradient()


@cases(rewriting.check)
def a_gradient_that_is_rounding_noise() -> CellEvidence:
    evidence = with_a_small_gradient()
    name = evidence.records[0].parameters[4].name
    evidence.tolerances = replace(evidence.tolerances, noise_only=frozenset({name}))
    return evidence


@cases(rewriting.check)
def a_small_gradient_within_an_absolute_bound() -> CellEvidence:
    return absolute(with_a_small_gradient(), "parameter_gradient")


@cases(rewriting.check)
def an_activation_beyond_an_absolute_bound() -> CellEvidence:
    evidence = absolute(with_canary("rewriting"), "activation", "document_loss")
    of_layer(leg_of(evidence.records[0], "rewriting").activations, 4).documents[3].norm_sq = 400.0
    assert evidence.control is not None
    of_layer(leg_of(evidence.control.records[0], "rewriting").activations, 4).documents[3].norm_sq = 100.0
    return evidence


@cases(rewriting.check)
def a_cell_without_the_canary() -> CellEvidence:
    evidence = of()
    evidence.control = with_canary("rewriting").control
    return evidence


@cases(rewriting.check)
def a_control_without_the_canary() -> CellEvidence:
    return replace(with_canary("rewriting"), control=of().control)


@cases(rewriting.check)
def a_cell_without_a_control() -> CellEvidence:
    return replace(with_canary("rewriting"), control=None)


@cases(truncation.check)
def wrong_params_behind_a_batch_without_any() -> CellEvidence:
    evidence = truncated("reference")
    record = evidence.records[1]
    first, second = leg_of(record, "truncation").batches[:2]
    first.params = None
    assert second.params is not None
    record.packed_params.append(replace(record.packed_params[second.params], qkv_format="bshd"))
    second.params = len(record.packed_params) - 1
    return evidence


@pytest.mark.parametrize("check", cases.of)
def test_a_canary_states_what_is_wrong_and_where(check: str, golden: Callable[[str, str], None]) -> None:
    golden(f"findings/{check}.txt", cases.text(check))
