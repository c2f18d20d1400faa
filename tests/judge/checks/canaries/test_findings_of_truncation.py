"""Findings of cut documents, compared whole."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from harness.core.packing.documents import DocumentsConfig
from harness.core.run.records import TensorSeen
from harness.judge.checks import canaries
from harness.judge.evidence.cell_evidence import CellEvidence
from tests.judge.checks.whole import Cases
from tests.judge.simulator import config_of, evidence_for, leg_of

cases = Cases()


def truncated(data_path: str = "unpacked") -> CellEvidence:
    """A cell of two replicas that truncates no document in step 0."""
    uncut = DocumentsConfig(mode="file", lengths=(20, 7, 9))
    return evidence_for(replace(config_of(data_path, dp=2, canaries=("truncation",)), documents=uncut))


@cases(canaries.truncation)
def wrong_slots_on_two_ranks() -> CellEvidence:
    evidence = truncated()
    wrong = TensorSeen(shape=[1, 64], dtype="torch.int64", mismatches=63, first=[3, 2, 17, 99])
    for record in evidence.records.values():
        leg_of(record, "truncation").batches[-1].labels = wrong
    return evidence


@cases(canaries.truncation)
def a_wrong_shape() -> CellEvidence:
    evidence = truncated()
    wrong = TensorSeen(shape=[1, 60], dtype="torch.int64", mismatches=4)
    leg_of(evidence.records[1], "truncation").batches[0].loss_mask = wrong
    return evidence


@cases(canaries.truncation)
def packed_params_of_other_documents() -> CellEvidence:
    evidence = truncated("reference")
    record = evidence.records[1]
    batch = leg_of(record, "truncation").batches[0]
    assert batch.params is not None
    record.packed_params.append(replace(record.packed_params[batch.params], max_seqlen_q=7, qkv_format="bshd"))
    batch.params = len(record.packed_params) - 1
    return evidence


@cases(canaries.truncation)
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


@cases(canaries.truncation)
def a_batch_without_params_and_one_that_the_plan_does_not_have() -> CellEvidence:
    evidence = truncated("reference")
    batches = leg_of(evidence.records[1], "truncation").batches
    batches[0].params = None
    batches += [replace(batches[-1], micro_batch=number) for number in (-1, len(batches))]
    return evidence


@cases(canaries.truncation)
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
