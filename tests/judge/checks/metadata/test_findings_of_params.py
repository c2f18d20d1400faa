"""Findings about packed params that are absent or have wrong values, compared whole."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from harness.core.run.records import Failure, Progress, RankEnding, SeenParams
from harness.judge.checks import packed_params
from harness.judge.evidence.cell_evidence import CellEvidence
from tests.judge.checks.whole import Cases, of
from tests.judge.simulator import alter_params, at, config_of, drop_params, evidence_for

cases = Cases()


def cut_short(leg: Any, ended: str, **ending: Any) -> CellEvidence:
    """A cell of two ranks whose second one ended in a leg."""
    evidence = of(tp=2)
    assert evidence.result is not None
    evidence.result.status = "failed"
    evidence.result.ranks[1] = RankEnding(rank=1, ended=ended, **ending)
    record = evidence.records[1]
    record.ended = "raised" if ended == "raised" else "running"
    record.progress = Progress(leg=leg, step=0, micro_batch=1, phase="fetch")
    if ended == "raised":
        record.failure = Failure(type="RuntimeError", message="64 vs 32", traceback="", time=5.0)
    return evidence


def offsets(**values: list[int]) -> Callable[[SeenParams], None]:
    """Set q and kv offsets alike, with the right form."""

    def change(seen: SeenParams) -> None:
        for name, value in values.items():
            for kind in ("q", "kv"):
                field = name.replace("_q", f"_{kind}")
                setattr(seen, field, value)
                if field in seen.forms:
                    seen.forms[field].shape = [len(value)]

    return change


def plain(evidence: CellEvidence, micro_batch: int = 0) -> list[int]:
    truth = evidence.plan[0][0][micro_batch].params
    assert truth is not None
    return list(truth.cu_seqlens_q)


def padded(evidence: CellEvidence, micro_batch: int = 0) -> list[int]:
    truth = evidence.plan[0][0][micro_batch].params
    assert truth is not None and truth.cu_seqlens_q_padded is not None
    return list(truth.cu_seqlens_q_padded)


@cases(packed_params.params_agree_plan)
def an_end_before_the_physical_length() -> CellEvidence:
    evidence = of(cp=2)
    for record in evidence.records.values():
        alter_params(record, offsets(cu_seqlens_q=[*plain(evidence)[:-1], 59]), micro_batch=0)
    return evidence


@cases(packed_params.params_agree_plan)
def a_garbage_longest_document() -> CellEvidence:
    evidence = of(tp=2, pp=4)

    def garbage(seen: SeenParams) -> None:
        seen.max_seqlen_q = seen.max_seqlen_kv = 93824992231648

    for record in at(evidence, tp=1):
        alter_params(record, garbage)
    return evidence


@cases(packed_params.params_agree_plan)
def offsets_and_longest_document_of_another_micro_batch() -> CellEvidence:
    evidence = of(tp=2)
    alter_params(evidence.records[1], offsets(cu_seqlens_q=plain(evidence, 0)), micro_batch=1)
    return evidence


@cases(packed_params.params_agree_plan)
def offsets_that_are_absent() -> CellEvidence:
    evidence = of(tp=2, pp=4)

    def absent(seen: SeenParams) -> None:
        seen.cu_seqlens_q = seen.cu_seqlens_kv = None

    for record in at(evidence, pp=1):
        alter_params(record, absent)
    return evidence


@cases(packed_params.params_agree_plan)
def three_empty_segments() -> CellEvidence:
    evidence = of()
    longer = [*plain(evidence), *[plain(evidence)[-1]] * 3]
    alter_params(evidence.records[0], offsets(cu_seqlens_q=longer), micro_batch=0)
    return evidence


@cases(packed_params.params_agree_plan)
def plain_offsets_in_place_of_padded_ones() -> CellEvidence:
    evidence = of("reference", tp=2, cp=2)
    alter_params(evidence.records[1], offsets(cu_seqlens_q_padded=plain(evidence)), micro_batch=0)
    return evidence


@cases(packed_params.params_agree_plan)
def padded_offsets_in_place_of_plain_ones() -> CellEvidence:
    evidence = of("reference", tp=2, cp=2)
    alter_params(evidence.records[1], offsets(cu_seqlens_q=padded(evidence)), micro_batch=0)
    return evidence


@cases(packed_params.params_agree_plan)
def wrong_plain_offsets_beside_right_padded_ones() -> CellEvidence:
    evidence = of("reference", tp=2, cp=2)
    values = plain(evidence)
    alter_params(evidence.records[1], offsets(cu_seqlens_q=[*values[:-1], values[-1] + 9]), micro_batch=0)
    return evidence


@cases(packed_params.params_agree_plan)
def wrong_padded_offsets_of_kv_alone() -> CellEvidence:
    evidence = of("reference", tp=2, cp=2)

    def shift(seen: SeenParams) -> None:
        assert seen.cu_seqlens_kv_padded is not None
        seen.cu_seqlens_kv_padded = [4, *seen.cu_seqlens_kv_padded[1:]]

    alter_params(evidence.records[1], shift, micro_batch=0)
    return evidence


def longest(seen: SeenParams) -> None:
    assert seen.max_seqlen_q is not None and seen.max_seqlen_kv is not None
    seen.max_seqlen_q, seen.max_seqlen_kv = seen.max_seqlen_q + 1, seen.max_seqlen_kv + 1


@cases(packed_params.params_agree_plan)
def every_group_of_fields_on_another_rank() -> CellEvidence:
    evidence = of("reference", tp=2, cp=2)
    alter_params(evidence.records[1], longest, micro_batch=1)
    alter_params(evidence.records[2], offsets(cu_seqlens_q_padded=[0, 64]), micro_batch=1)
    alter_params(evidence.records[3], offsets(cu_seqlens_q=[0, 64]), micro_batch=1)
    return evidence


@cases(packed_params.params_present)
def no_params_on_a_middle_stage() -> CellEvidence:
    evidence = of(tp=2, pp=4)
    for record in at(evidence, pp=1, tp=1):
        drop_params(record)
    return evidence


@cases(packed_params.params_present)
def a_layer_and_a_batch_that_were_never_recorded() -> CellEvidence:
    evidence = of(pp=2, vpp=2)
    evidence.records[1].layers = [seen for seen in evidence.records[1].layers if seen.layer != 4]
    evidence.records[0].batches = evidence.records[0].batches[:-1]
    return evidence


@cases(packed_params.params_present)
def batches_of_a_rank_that_was_killed_after_it_had_fetched_them() -> CellEvidence:
    evidence = cut_short("training", "killed", exit_code=-9)
    evidence.records[1].layers, evidence.records[1].batches = [], []
    return evidence


@cases(packed_params.params_present)
def a_rank_of_upstreams_trainer_that_was_killed_while_it_trained() -> CellEvidence:
    evidence = evidence_for(replace(config_of("sft", tp=2), trainer="megatron"))
    assert evidence.result is not None
    evidence.result.ranks[1] = RankEnding(rank=1, ended="killed", exit_code=-9)
    record = evidence.records[1]
    record.ended, record.progress = "running", Progress(leg="training", step=0, phase="forward")
    record.layers, record.batches = [], record.batches[:-1]
    return evidence


@cases(packed_params.params_present)
def micro_batches_that_were_not_run_which_another_check_names() -> CellEvidence:
    evidence = of()
    record = evidence.records[0]
    record.steps[1].micro_batches -= 1
    last = record.steps[1].micro_batches
    record.layers = [seen for seen in record.layers if (seen.step, seen.micro_batch) != (1, last)]
    return evidence


@cases(packed_params.params_agree_plan)
def offsets_of_twenty_documents() -> CellEvidence:
    evidence = of()
    alter_params(evidence.records[0], offsets(cu_seqlens_q=list(range(0, 42, 2))), micro_batch=0)
    return evidence


@cases(packed_params.params_agree_plan)
def other_offsets_on_each_rank() -> CellEvidence:
    evidence = of(tp=2)
    alter_params(evidence.records[0], offsets(cu_seqlens_q=[0, 30, 64]), micro_batch=0)
    alter_params(evidence.records[1], offsets(cu_seqlens_q=[0, 32, 64]), micro_batch=0)
    return evidence


@cases(packed_params.params_present)
def a_rank_that_was_killed_at_its_end() -> CellEvidence:
    evidence = of(tp=2)
    record = evidence.records[1]
    record.ended, record.batches = "running", record.batches[1:]
    return evidence


@cases(packed_params.params_agree_plan)
def other_offsets_in_the_model_than_before_it() -> CellEvidence:
    evidence = of()
    record = evidence.records[0]
    alter_params(record, offsets(cu_seqlens_q=[0, 30, 64]), micro_batch=0)
    for layer in range(1, 5):
        alter_params(record, offsets(cu_seqlens_q=[0, 32, 64]), micro_batch=0, layer=layer)
    return evidence


@pytest.mark.parametrize("check", cases.of)
def test_a_metadata_check_states_what_is_wrong_and_where(check: str, golden: Callable[[str, str], None]) -> None:
    golden(f"findings/{check}.txt", cases.text(check))
