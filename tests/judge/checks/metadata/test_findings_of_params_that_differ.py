"""Findings about packed params that differ between ranks or forwards, compared whole."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from harness.core.run.records import SeenParams
from harness.judge.checks import packed_params
from harness.judge.evidence.cell_evidence import CellEvidence
from tests.judge.checks.whole import Cases, of
from tests.judge.simulator import alter_params, config_of, evidence_for

cases = Cases()


def longest(seen: SeenParams) -> None:
    assert seen.max_seqlen_q is not None and seen.max_seqlen_kv is not None
    seen.max_seqlen_q, seen.max_seqlen_kv = seen.max_seqlen_q + 1, seen.max_seqlen_kv + 1


def add_padded(seen: SeenParams) -> None:
    seen.cu_seqlens_q_padded, seen.cu_seqlens_kv_padded = seen.cu_seqlens_q, seen.cu_seqlens_kv


@cases(packed_params.params_agree_ranks)
def padded_offsets_on_two_ranks_of_eight() -> CellEvidence:
    evidence = of(tp=2, pp=2, cp=2)
    for rank in (5, 7):
        alter_params(evidence.records[rank], add_padded, micro_batch=1)
    return evidence


@cases(packed_params.params_agree_ranks)
def padded_offsets_on_all_ranks_but_one() -> CellEvidence:
    evidence = of(tp=2, pp=2)
    for rank in (0, 1, 3):
        alter_params(evidence.records[rank], add_padded, micro_batch=0)
    return evidence


@cases(packed_params.params_agree_ranks)
def wrong_values_and_forms_which_other_checks_name() -> CellEvidence:
    evidence = of(tp=2, pp=2)

    def wrong_form(seen: SeenParams) -> None:
        add_padded(seen)
        seen.qkv_format = "bshd"

    def wrong_value(seen: SeenParams) -> None:
        add_padded(seen)
        longest(seen)

    alter_params(evidence.records[1], wrong_form)
    alter_params(evidence.records[2], wrong_value)
    return evidence


def recomputed(**layout: int) -> CellEvidence:
    return evidence_for(replace(config_of("reference", **layout), recompute="full"))


@cases(packed_params.params_recomputed)
def params_of_another_micro_batch_in_two_layers() -> CellEvidence:
    evidence = recomputed(pp=2)
    record = evidence.records[1]
    other = next(seen for seen in record.layers if seen.micro_batch == 1).params
    for seen in record.recomputed:
        if (seen.step, seen.micro_batch) == (1, 0):
            seen.params = other
    return evidence


@cases(packed_params.params_recomputed)
def params_that_one_forward_did_not_get() -> CellEvidence:
    evidence = recomputed()
    record = evidence.records[0]
    record.recomputed[3].params = None
    record.layers[0].params = None
    return evidence


@cases(packed_params.params_recomputed)
def a_layer_that_only_the_second_forward_recorded() -> CellEvidence:
    evidence = recomputed()
    evidence.records[0].layers = evidence.records[0].layers[1:]
    return evidence


@cases(packed_params.params_agree_ranks)
def other_fields_on_each_rank() -> CellEvidence:
    evidence = of(tp=2, pp=2)

    def only_q(seen: SeenParams) -> None:
        seen.cu_seqlens_q_padded = seen.cu_seqlens_q

    alter_params(evidence.records[1], only_q, micro_batch=0)
    alter_params(evidence.records[3], add_padded, micro_batch=0)
    return evidence


@cases(packed_params.params_agree_ranks)
def padded_offsets_on_another_device_which_another_check_names() -> CellEvidence:
    evidence = of(tp=2)

    def moved(seen: SeenParams) -> None:
        add_padded(seen)
        seen.forms["cu_seqlens_q"].device = "cuda:1"

    alter_params(evidence.records[1], moved)
    return evidence


@cases(packed_params.params_agree_ranks)
def tensors_that_only_one_rank_copied() -> CellEvidence:
    evidence = of(tp=2)

    def copied(seen: SeenParams) -> None:
        seen.forms["cu_seqlens_kv"].same_as = None

    alter_params(evidence.records[1], copied)
    return evidence


@cases(packed_params.params_agree_ranks)
def a_form_that_most_ranks_have_though_no_rank_has_it_everywhere() -> CellEvidence:
    evidence = of(tp=2, pp=2, cp=2)
    for rank in (0, 1, 2):
        alter_params(evidence.records[rank], add_padded, micro_batch=0)
    return evidence


@cases(packed_params.params_agree_ranks)
def padded_offsets_on_the_first_rank_alone_and_only_for_kv_in_its_layers() -> CellEvidence:
    evidence = of(tp=2, pp=2)

    def only_kv(seen: SeenParams) -> None:
        seen.cu_seqlens_q_padded = None

    alter_params(evidence.records[0], add_padded, micro_batch=0)
    for layer in (1, 2):
        alter_params(evidence.records[0], only_kv, micro_batch=0, layer=layer)
    return evidence


@cases(packed_params.params_agree_ranks)
def padded_offsets_on_the_first_rank_alone() -> CellEvidence:
    evidence = of(tp=4)
    alter_params(evidence.records[0], add_padded)
    return evidence


@cases(packed_params.params_agree_ranks)
def padded_offsets_on_the_first_rank_alone_while_every_rank_has_its_own_tensors() -> CellEvidence:
    evidence = of(tp=4)
    alter_params(evidence.records[0], add_padded)
    for rank in (1, 2, 3):
        for seen in evidence.records[rank].packed_params:
            seen.forms["cu_seqlens_kv"].same_as = f"tensor {rank}"
    return evidence


@pytest.mark.parametrize("check", cases.of)
def test_a_metadata_check_states_what_is_wrong_and_where(check: str, golden: Callable[[str, str], None]) -> None:
    golden(f"findings/{check}.txt", cases.text(check))
