"""Findings about layers, and of ranks that did not complete, compared whole."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest

from harness.core.run.records import Failure
from harness.judge.checks import outputs
from harness.judge.evidence.cell_evidence import CellEvidence
from tests.judge.checks.numerics.test_ended import cut_off
from tests.judge.checks.whole import Cases, of, shift

cases = Cases()


@cases(outputs.activations)
def documents_behind_others_after_a_hop_between_stages() -> CellEvidence:
    evidence = of(tp=2, pp=4, steps=1)
    shift(evidence, 2, 1, 2, 3)
    return evidence


@cases(outputs.activations)
def all_documents_after_a_hop_between_stages() -> CellEvidence:
    evidence = of(pp=2)
    shift(evidence, 3, *range(8))
    return evidence


@cases(outputs.activations)
def all_documents_after_a_layer_within_a_stage() -> CellEvidence:
    evidence = of(pp=2)
    shift(evidence, 2, *range(8))
    return evidence


@cases(outputs.activations)
def a_document_from_a_token_on() -> CellEvidence:
    evidence = of(dp=2)
    shift(evidence, 2, 3)
    for record in evidence.records.values():
        for token in record.steps[0].tokens:
            token.loss += 0.1 if token.document == 3 and token.position >= 2 else 0.0
    return evidence


@cases(outputs.activations)
def the_embedding() -> CellEvidence:
    evidence = of(pp=2)
    shift(evidence, 0, 3, 5)
    return evidence


@cases(outputs.activations)
def the_embedding_of_context_parallel_ranks() -> CellEvidence:
    evidence = of(cp=2)
    shift(evidence, 0, 3, 5)
    return evidence


@cases(outputs.activations)
def the_embedding_of_a_cut_document() -> CellEvidence:
    evidence = of(cp=2, steps=1)
    shift(evidence, 0, 7)
    return evidence


@cases(outputs.activations)
def a_layer_that_was_not_recorded() -> CellEvidence:
    evidence = of(pp=2)
    evidence.records[1].activations = [seen for seen in evidence.records[1].activations if seen.layer != 4]
    return evidence


@cases(outputs.activations)
def a_first_step_that_is_not_whole() -> CellEvidence:
    evidence = of(pp=2)
    shift(evidence, 2, 1)
    evidence.records[0].steps = evidence.records[0].steps[1:]
    return evidence


def stopped(rank: int, failure: Failure) -> CellEvidence:
    """A cell of two ranks, one of which raised in the training leg."""
    evidence = of(tp=2)
    assert evidence.result is not None
    evidence.result.status = "failed"
    cut_off(evidence.records[rank], "raised")
    evidence.records[rank].failure = failure
    return evidence


@cases(outputs.ended)
def an_exception_of_the_model() -> CellEvidence:
    failure = Failure(type="RuntimeError", message="64 vs 32", traceback="", time=5.0)
    failure.frames = ["megatron/core/transformer/attention.py:33 in forward"]
    return stopped(1, failure)


@cases(outputs.ended)
def a_rank_without_memory() -> CellEvidence:
    message = "CUDA out of memory. Tried to allocate 20.00 GiB. GPU 1 has a total capacity of 139.00 GiB"
    evidence = stopped(1, Failure(type="OutOfMemoryError", message=message, traceback="", time=5.0))
    evidence.records[1].peak_memory_bytes, evidence.records[1].peak_reserved_bytes = 125 * 2**30, 130 * 2**30
    evidence.records[1].environment["memory_limit_bytes"] = str(139 * 2**30)
    return evidence


@cases(outputs.ended)
def a_hang() -> CellEvidence:
    evidence = of(tp=2)
    assert evidence.result is not None
    evidence.result.status = "failed"
    for rank, hang in enumerate(("all_reduce", None)):
        cut_off(evidence.records[rank], "running")
        ending = evidence.result.ranks[rank]
        inner = ["torch/distributed/distributed_c10d.py:2714 in all_reduce"] if hang else []
        ending.ended, ending.hang, ending.still_s, ending.exit_code = "deadline", hang, 60.0, -9
        ending.stack = ["harness/runtime/rank.py:70 in _run", "megatron/core/models/gpt.py:33 in forward", *inner]
    return evidence


@cases(outputs.ended)
def an_exception_outside_the_code() -> CellEvidence:
    return stopped(1, Failure(type="OSError", message="[Errno 28] No space left on device", traceback="", time=5.0))


@cases(outputs.finiteness)
def one_number() -> CellEvidence:
    evidence = of(tp=2)
    evidence.records[1].steps[1].grad_norm = math.inf
    return evidence


@cases(outputs.finiteness)
def several_numbers_of_two_ranks() -> CellEvidence:
    evidence = of(tp=2, pp=2)
    evidence.records[1].steps[1].grad_norm = math.inf
    evidence.records[3].steps[0].grad_norm = math.nan
    evidence.records[3].activations[0].documents[5].norm_sq = math.nan
    return evidence


@cases(outputs.activations)
def nothing_wrong_and_no_experts() -> CellEvidence:
    return of()


@cases(outputs.activations)
def a_document_from_its_first_token_on() -> CellEvidence:
    evidence = of()
    shift(evidence, 2, 3)
    for token in evidence.records[0].steps[0].tokens:
        token.loss += 0.1 if token.document == 3 else 0.0
    return evidence


@cases(outputs.finiteness)
def two_numbers() -> CellEvidence:
    evidence = of(tp=2)
    for record in evidence.records.values():
        record.steps[1].grad_norm = math.inf
    return evidence


@pytest.mark.parametrize("check", cases.of)
def test_a_numerics_check_states_what_is_wrong_and_where(check: str, golden: Callable[[str, str], None]) -> None:
    golden(f"findings/{check}.txt", cases.text(check))
