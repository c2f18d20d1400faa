"""Findings about the form of packed params, compared whole."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from harness.core.run.records import SeenParams
from harness.judge.checks import packed_params
from harness.judge.evidence.cell_evidence import CellEvidence
from tests.judge.checks.whole import Cases, of
from tests.judge.simulator import alter_params

cases = Cases()


def longest(seen: SeenParams) -> None:
    assert seen.max_seqlen_q is not None and seen.max_seqlen_kv is not None
    seen.max_seqlen_q, seen.max_seqlen_kv = seen.max_seqlen_q + 1, seen.max_seqlen_kv + 1


@cases(packed_params.params_form)
def two_tensors_of_another_type_and_a_format() -> CellEvidence:
    evidence = of("reference", tp=2)

    def change(seen: SeenParams) -> None:
        seen.qkv_format = "bshd"
        seen.forms["cu_seqlens_q"].dtype = seen.forms["cu_seqlens_kv"].dtype = "torch.int64"

    alter_params(evidence.records[1], change, micro_batch=1)
    return evidence


@cases(packed_params.params_form)
def a_longest_document_that_is_a_tensor() -> CellEvidence:
    evidence = of(tp=2)

    def change(seen: SeenParams) -> None:
        seen.max_seqlen_type = "Tensor"

    for record in evidence.records.values():
        alter_params(record, change)
    return evidence


@cases(packed_params.params_form)
def three_tensors_and_one_on_another_rank() -> CellEvidence:
    evidence = of("reference", tp=2)

    def move(*names: str) -> Callable[[SeenParams], None]:
        def change(seen: SeenParams) -> None:
            for name in names:
                seen.forms[name].device = "cuda:1"

        return change

    alter_params(evidence.records[0], move("cu_seqlens_kv_padded"), micro_batch=2)
    alter_params(evidence.records[1], move("cu_seqlens_q", "cu_seqlens_kv", "cu_seqlens_q_padded"), micro_batch=1)
    return evidence


@cases(packed_params.params_form)
def packed_params_in_an_unpacked_run() -> CellEvidence:
    evidence = of("unpacked", pp=2)
    record = evidence.records[1]
    record.packed_params = [SeenParams(qkv_format="thd", cu_seqlens_q=[0, 64])]
    record.layers[0].params = record.layers[1].params = 0
    return evidence


@cases(packed_params.params_identity)
def copies_of_the_offsets_in_two_micro_batches() -> CellEvidence:
    evidence = of("reference", pp=2)

    def copied(seen: SeenParams) -> None:
        seen.forms["cu_seqlens_q_padded"].same_as = None

    for number in (1, 2):
        alter_params(evidence.records[1], copied, micro_batch=number)
    return evidence


@cases(packed_params.params_identity)
def copies_of_wrong_offsets_which_another_check_names() -> CellEvidence:
    evidence = of("reference")

    def copied(seen: SeenParams) -> None:
        longest(seen)
        seen.forms["cu_seqlens_q_padded"].same_as = None

    alter_params(evidence.records[0], copied)
    return evidence


@pytest.mark.parametrize("check", cases.of)
def test_a_metadata_check_states_what_is_wrong_and_where(check: str, golden: Callable[[str, str], None]) -> None:
    golden(f"findings/{check}.txt", cases.text(check))
