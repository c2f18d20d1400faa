"""Findings about losses, compared whole."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import pytest

from harness.core.cell.model import ModelConfig
from harness.core.packing.documents import DocumentsConfig
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


def on_gpu(evidence: CellEvidence) -> CellEvidence:
    for record in evidence.records.values():
        record.environment = record.environment | {"device": "NVIDIA H200"}
    return evidence


@cases(canaries.isolation)
def two_victims_of_the_first_document() -> CellEvidence:
    evidence = with_canary("isolation", pp=2)
    set_loss(evidence, "isolation", 1, 8.0, 8.5)
    set_loss(evidence, "isolation", 3, 8.0, 8.25)
    return evidence


@cases(canaries.isolation)
def a_victim_of_a_document_in_another_micro_batch() -> CellEvidence:
    documents = DocumentsConfig(mode="file", lengths=(60, 60, 20, 20, 20, 20, 20, 20))  # one, one and three per row
    evidence = evidence_for(replace(config_of("sft", canaries=("isolation",)), documents=documents))
    set_loss(evidence, "isolation", 1, 8.0, 8.5)
    return evidence


@cases(canaries.isolation)
def two_changed_documents_whose_losses_stay() -> CellEvidence:
    documents = DocumentsConfig(mode="file", lengths=(20, 20, 20))
    config = replace(config_of("sft", pp=2, canaries=("isolation",)), documents=documents)
    evidence = evidence_for(config)
    for document in evidence.legs["isolation"].leg.changed:
        set_loss(evidence, "isolation", document, 8.0, 8.0)
    return evidence


@cases(canaries.isolation)
def a_changed_document_without_a_loss() -> CellEvidence:
    evidence = with_canary("isolation")
    (changed,) = evidence.legs["isolation-middle"].leg.changed
    del evidence.records[0].steps[0].documents[changed]
    return evidence


@cases(canaries.order)
def documents_behind_others() -> CellEvidence:
    evidence = with_canary("order", pp=2, steps=1)
    set_loss(evidence, "order", 1, 8.0, 8.5)
    set_loss(evidence, "order", 3, 8.0, 8.5)
    return evidence


@cases(canaries.order)
def the_first_document_of_a_pack() -> CellEvidence:
    evidence = with_canary("order", pp=2)
    set_loss(evidence, "order", 4, 8.0, 8.5)
    set_loss(evidence, "order", 1, 8.0, 8.5)
    return evidence


@cases(canaries.order)
def losses_that_are_not_finite() -> CellEvidence:
    evidence = with_canary("order")
    set_loss(evidence, "order", 1, 8.0, math.inf)
    set_loss(evidence, "order", 2, math.nan, 8.0)
    set_loss(evidence, "order", 3, -math.inf, 8.0)
    return evidence


@cases(canaries.padding)
def losses_that_depend_on_the_padding() -> CellEvidence:
    evidence = with_canary("padding", pp=2)
    set_loss(evidence, "padding", 1, 8.0, 8.5)
    set_loss(evidence, "padding", 3, 8.0, 8.5)
    return evidence


@cases(canaries.padding)
def padding_that_counts() -> CellEvidence:
    evidence = with_canary("padding", pp=2)
    leg_of(evidence.records[1], "padding").token_count += 3
    return evidence


@cases(canaries.repetition)
def copies_of_which_one_is_not_finite() -> CellEvidence:
    evidence = with_canary("repetition", pp=2)
    for copy, part in leg_of(evidence.records[1], "repetition").documents.items():
        part.loss_sum = {5: math.nan, 6: 8.5, 7: 8.25}.get(copy, 8.0)
    return evidence


@cases(canaries.repetition)
def a_copy_that_is_missing() -> CellEvidence:
    evidence = with_canary("repetition")
    del leg_of(evidence.records[0], "repetition").documents[5]
    return evidence


@cases(canaries.repetition)
def an_original_without_a_finite_loss() -> CellEvidence:
    evidence = with_canary("repetition")
    leg_of(evidence.records[0], "repetition").documents[0].loss_sum = math.inf
    return evidence


@cases(canaries.repetition)
def an_original_without_a_loss() -> CellEvidence:
    evidence = with_canary("repetition")
    del leg_of(evidence.records[0], "repetition").documents[0]
    return evidence


@cases(canaries.repetition)
def the_first_copy_of_a_second_pack() -> CellEvidence:
    evidence = with_canary("repetition", dp=2)
    leg = evidence.legs["repetition"]
    first = next(copy for copy, position in leg.positions.items() if position.dp == 1)
    for record in evidence.records.values():
        for copy, part in leg_of(record, "repetition").documents.items():
            part.loss_sum = 8.5 if copy == first else 8.0
    return evidence


@cases(canaries.isolation)
def a_first_step_of_which_nothing_was_recorded() -> CellEvidence:
    evidence = with_canary("isolation")
    evidence.records[0].steps = evidence.records[0].steps[1:]
    return evidence


@cases(canaries.order)
def documents_without_a_loss() -> CellEvidence:
    evidence = with_canary("order")
    del evidence.records[0].steps[0].documents[1], leg_of(evidence.records[0], "order").documents[2]
    set_loss(evidence, "order", 3, 8.0, 8.5)
    return evidence


@cases(canaries.isolation)
def a_cell_with_experts_whose_shapes_change_with_the_tokens() -> CellEvidence:
    config = replace(config_of("sft", canaries=("isolation",)), model=ModelConfig(layers=2, moe=MoeConfig()))
    evidence = evidence_for(config)
    set_loss(evidence, "isolation", 1, 8.0, 8.0 + 2**-30)
    set_loss(evidence, "isolation", 3, 8.0, 8.0 + 2**-10)
    return evidence


@cases(canaries.padding)
def a_rank_that_recorded_no_device() -> CellEvidence:
    evidence = with_canary("padding")
    evidence.records[0].environment = {}
    set_loss(evidence, "padding", 1, 8.0, 8.0 + 2**-30)
    return evidence


@cases(canaries.isolation)
@cases(canaries.order)
@cases(canaries.padding)
def a_cell_without_canaries() -> CellEvidence:
    return of()


@cases(canaries.isolation)
def a_victim_in_the_second_replica() -> CellEvidence:
    documents = DocumentsConfig(mode="file", lengths=(12, 12, 12, 12, 12, 50))
    evidence = evidence_for(replace(config_of("reference", canaries=("isolation",), dp=2), documents=documents))
    evidence.records[1].steps[0].documents[3].loss_sum = 8.0
    leg_of(evidence.records[1], "isolation").documents[3].loss_sum = 8.5
    return evidence


@cases(canaries.padding)
def a_loss_on_a_gpu() -> CellEvidence:
    evidence = on_gpu(with_canary("padding"))
    set_loss(evidence, "padding", 1, 8.0, 8.0 + 2**-30)
    set_loss(evidence, "padding", 3, 8.0, 8.0 + 2**-10)
    return evidence


@pytest.mark.parametrize("check", cases.of)
def test_a_canary_states_what_is_wrong_and_where(check: str, golden: Callable[[str, str], None]) -> None:
    golden(f"findings/{check}.txt", cases.text(check))
