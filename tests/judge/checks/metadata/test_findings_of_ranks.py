"""Findings about ranks, their batches and their work, compared whole."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from harness.core.run.records import Failure, Progress, RankEnding, TensorSeen
from harness.judge.checks import batches
from harness.judge.evidence.cell_evidence import CellEvidence
from tests.judge.checks.whole import Cases, of

cases = Cases()


def tensor(mismatches: int = 0, first: list[int] | None = None) -> TensorSeen:
    return TensorSeen(shape=[1, 64], dtype="torch.int64", mismatches=mismatches, first=first)


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


@cases(batches.completeness)
def an_exception_while_batches_are_fetched() -> CellEvidence:
    evidence = cut_short("metadata", "raised", exit_code=1)
    assert evidence.records[1].failure is not None
    evidence.records[1].failure.frames = ["megatron/core/datasets/gpt_dataset.py:33 in __getitem__"]
    return evidence


@cases(batches.completeness)
def an_exception_while_the_model_trains() -> CellEvidence:
    evidence = cut_short("training", "raised", exit_code=1)
    assert evidence.records[1].failure is not None
    evidence.records[1].failure.frames = ["megatron/core/transformer/attention.py:33 in forward"]
    return evidence


@cases(batches.completeness)
def a_rank_that_was_killed_from_outside() -> CellEvidence:
    return cut_short("metadata", "killed", exit_code=-9)


@cases(batches.completeness)
def a_rank_without_a_record() -> CellEvidence:
    evidence = cut_short("metadata", "missing")
    del evidence.records[1]
    return evidence


@cases(batches.completeness)
def an_exception_of_the_harness() -> CellEvidence:
    evidence = cut_short("metadata", "raised", exit_code=1)
    assert evidence.records[1].failure is not None
    evidence.records[1].failure.frames = ["harness/runtime/rank.py:70 in _run"]
    return evidence


@cases(batches.completeness)
def a_full_disk() -> CellEvidence:
    evidence = cut_short("metadata", "raised", exit_code=1)
    evidence.records[1].failure = Failure(
        type="OSError", message="[Errno 28] No space left on device", traceback="", time=5.0
    )
    return evidence


@cases(batches.completeness)
def a_module_that_cannot_be_imported() -> CellEvidence:
    evidence = cut_short("setup", "raised", exit_code=1)
    evidence.records[1].failure = Failure(type="ImportError", message="no megatron", traceback="", time=5.0)
    return evidence


@cases(batches.completeness)
def a_hang_while_batches_are_fetched() -> CellEvidence:
    evidence = cut_short("metadata", "deadline", exit_code=-9)
    assert evidence.result is not None
    for rank, hang in enumerate(("broadcast", None)):
        record, ending = evidence.records[rank], evidence.result.ranks[rank]
        record.ended, record.progress = "running", Progress(leg="metadata", micro_batch=1, phase="fetch")
        inner = ["torch/distributed/distributed_c10d.py:2714 in broadcast"] if hang else []
        ending.ended, ending.hang, ending.still_s = "deadline", hang, 60.0
        ending.stack = ["harness/runtime/rank.py:70 in _run", "megatron/core/datasets/gpt_dataset.py:33 in x", *inner]
    return evidence


@cases(batches.micro_batch_count)
def too_many_on_two_ranks_and_the_first_step_leads() -> CellEvidence:
    evidence = of(tp=2, pp=2)
    evidence.records[1].micro_batches[1] += 1
    evidence.records[3].micro_batches[0] += 2
    return evidence


@cases(batches.micro_batch_count)
def replicas_that_run_different_numbers() -> CellEvidence:
    evidence = of(dp=2)
    evidence.records[1].steps[1].micro_batches -= 1
    return evidence


@cases(batches.micro_batch_count)
def a_step_beyond_the_plan() -> CellEvidence:
    evidence = of(tp=2)
    evidence.records[1].micro_batches.append(3)
    return evidence


@cases(batches.tokens_placed)
def two_fields_that_are_missing_and_one_too_many() -> CellEvidence:
    evidence = of(pp=4)
    for batch in evidence.records[3].batches[:2]:
        batch.labels = batch.loss_mask = None
    evidence.records[2].batches[1].tokens = tensor()
    return evidence


@cases(batches.tokens_placed)
def wrong_content_next_to_another_document() -> CellEvidence:
    evidence = of(tp=2)
    evidence.records[1].batches[0].labels = tensor(5, [2, 0, 11, 99])
    evidence.records[0].batches[1].labels = tensor(7, [5, 0, 11, 98])
    evidence.records[0].batches[1].tokens = tensor(2, [-1, 4, 0, 1])
    return evidence


@cases(batches.tokens_placed)
def wrong_content_of_a_cut_document_and_a_wrong_shape() -> CellEvidence:
    evidence = of(cp=2)
    evidence.records[0].batches[-1].tokens = tensor(64, [7, 0, 11, 20])
    evidence.records[1].batches[0].loss_mask = tensor(3)
    return evidence


@cases(batches.tokens_placed)
def log_probs_of_other_tokens() -> CellEvidence:
    evidence = of("skyrl", cp=2)
    evidence.records[1].batches[0].log_probs = tensor(5, [2, 3, 11, 7])
    return evidence


@cases(batches.tokens_placed)
def fields_of_the_first_stage_on_its_later_chunk_are_no_waste() -> CellEvidence:
    evidence = of("reference", pp=2, vpp=2)
    for batch in evidence.records[0].batches:
        batch.tokens = tensor()
    return evidence


@cases(batches.tokens_placed)
def unpacked_batches_that_were_never_fetched() -> CellEvidence:
    evidence = of("unpacked", pp=2)
    evidence.records[1].batches = evidence.records[1].batches[:-2]
    return evidence


@cases(batches.tokens_placed)
def unpacked_batches_of_ranks_that_did_not_complete() -> CellEvidence:
    evidence = of("unpacked", pp=2, dp=2)
    record = evidence.records[1]
    record.ended, record.progress, record.batches = "running", Progress(leg="metadata"), []
    del evidence.records[0]
    return evidence


@cases(batches.workload)
def counts_of_two_ranks_and_three_fields() -> CellEvidence:
    evidence = of("scheduler", dp=2)
    for rank in (0, 1):
        seen = evidence.records[rank].workloads[1]
        seen.micro_batches, seen.tokens, seen.squares = seen.micro_batches + 1, seen.tokens + 1, seen.squares + 1
    return evidence


@cases(batches.workload)
def counts_times_the_number_of_model_chunks() -> CellEvidence:
    evidence = of("reference", pp=2, vpp=2)
    for seen in evidence.records[1].workloads:
        seen.squares *= 2
    return evidence


@cases(batches.workload)
def whole_packs_counted_as_documents() -> CellEvidence:
    evidence = of("reference")
    slots = [truth.batch.slots for truth in evidence.plan[0][0]]
    seen = evidence.records[0].workloads[0]
    seen.tokens, seen.squares = sum(slots), sum(size**2 for size in slots)
    return evidence


@cases(batches.micro_batch_count)
def a_wrong_plan_and_another_wrong_run() -> CellEvidence:
    evidence = of(tp=2)
    evidence.records[1].micro_batches[0] += 2
    evidence.records[1].steps[0].micro_batches += 1
    return evidence


@cases(batches.tokens_placed)
def missing_fields_come_before_wrong_content() -> CellEvidence:
    evidence = of(pp=2)
    evidence.records[0].batches[0].tokens = tensor(5, [2, 3, 11, 99])
    evidence.records[1].batches[1].labels = None
    return evidence


@cases(batches.tokens_placed)
def packed_batches_that_were_never_fetched_which_another_check_names() -> CellEvidence:
    evidence = of()
    evidence.records[0].batches = evidence.records[0].batches[1:]
    return evidence


@cases(batches.workload)
def padded_packs_counted_as_documents() -> CellEvidence:
    evidence = of("reference", cp=2)
    slots = [truth.batch.slots for truth in evidence.plan[0][0]]
    seen = evidence.records[0].workloads[0]
    seen.tokens, seen.squares = sum(slots), sum(size**2 for size in slots)
    return evidence


@pytest.mark.parametrize("check", cases.of)
def test_a_metadata_check_states_what_is_wrong_and_where(check: str, golden: Callable[[str, str], None]) -> None:
    golden(f"findings/{check}.txt", cases.text(check))
