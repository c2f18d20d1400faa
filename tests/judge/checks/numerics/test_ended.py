from __future__ import annotations

from dataclasses import replace

import pytest

from harness.core.outcomes import Lane, LaneVerdict, Outcome
from harness.core.run.records import Failure, Progress, RankEnding, RankRecord
from harness.judge.diagnosis import fault_classes
from harness.judge.evidence.cell_evidence import CellEvidence
from tests.judge.simulator import at, config_of, evidence_for, judge, place_of, the_only_finding

IN_CODE = "megatron/core/pipeline_parallel/schedules.py:400 in forward_step"
OUTER = ["harness/runtime/rank.py:70 in _run", "harness/probe/legs/training.py:40 in run"]


def cut_off(record: RankRecord, ended: str) -> None:
    """Reduce a record to what it holds if the rank stops in step 0, micro-batch 1 of the training leg."""
    record.ended = ended
    record.progress = Progress(leg="training", step=0, micro_batch=1, phase="forward")
    record.layers = [layer for layer in record.layers if layer.step == 0 and layer.micro_batch == 0]
    record.steps, record.parameters, record.activations = [], [], []
    if ended == "raised":
        record.failure = Failure(type="RuntimeError", message="64 vs 32", traceback="", time=5.0, frames=[IN_CODE])


def waits(evidence: CellEvidence, rank: int, hang: str | None, *frames: str) -> None:
    """Set what the supervisor saw of a rank that hung until the deadline; `frames`: innermost last."""
    assert evidence.result is not None
    ending = evidence.result.ranks[rank]
    inner = ["torch/distributed/distributed_c10d.py:2714 in " + hang] if hang else []
    ending.ended, ending.hang, ending.stack = "deadline", hang, [*OUTER, *frames, *inner]
    ending.still_s, ending.exit_code = 60.0, -9


def _cut_off_all(evidence: CellEvidence, ended: str) -> None:
    assert evidence.result is not None
    evidence.result.status = "failed"
    evidence.result.ranks = [RankEnding(rank=rank, ended=ended) for rank in evidence.records]
    for record in evidence.records.values():
        cut_off(record, ended if ended == "raised" else "running")


def test_the_first_exception_of_the_training_leg_is_named() -> None:
    evidence = evidence_for(config_of("sft", tp=2, pp=2))
    _cut_off_all(evidence, "raised")
    for record in evidence.records.values():
        record.failure = Failure(type="RuntimeError", message="connection closed", traceback="", time=9.0)
    evidence.records[2].failure = Failure(type="RuntimeError", message="64 vs 32", traceback="", time=5.0)
    finding = the_only_finding(evidence, "ended")
    assert place_of(finding, "rank", "stage", "tp", "step", "micro_batch") == (2, 1, 0, 0, 1)
    assert "RuntimeError: 64 vs 32" in finding.message
    assert finding.fault_class == fault_classes.CRASH
    assert judge(evidence).lanes[Lane.METADATA] is LaneVerdict.PASS


def test_metadata_evidence_from_before_the_crash_comes_first() -> None:
    evidence = evidence_for(config_of("sft", tp=2, pp=4))
    _cut_off_all(evidence, "raised")
    for record in at(evidence, pp=1):
        for batch in record.batches:
            batch.params = None
    findings = judge(evidence).findings
    assert [finding.check for finding in findings] == ["params_present", "ended"]
    assert findings[0].fault_class == fault_classes.MIDDLE_STAGES
    assert findings[1].fault_class == fault_classes.CRASH


def test_a_hang_is_named_after_its_collective() -> None:
    evidence = evidence_for(config_of("sft", tp=2))
    _cut_off_all(evidence, "deadline")
    assert evidence.result is not None
    waits(evidence, 0, "all_reduce", "megatron/core/distributed/finalize_model_grads.py:300 in finalize_model_grads")
    waits(evidence, 1, None, IN_CODE)
    evidence.records[0].progress.step = 1
    finding = the_only_finding(evidence, "ended")
    assert "hang in all_reduce (rank 0) at step 1" in finding.message
    assert f"rank 1 (stage 0, tp 1, cp 0, dp 0) never arrived: it was at {IN_CODE}" in finding.message
    assert place_of(finding, "rank") == (1,)
    assert finding.fault_class == fault_classes.HANG


@pytest.mark.parametrize(("still_s", "outcome"), [(24.0, Outcome.FAIL), (23.0, Outcome.ERROR)])
@pytest.mark.parametrize(("started", "finished"), [(100.0, 220.0), (100.0, 100.0), (0.0, 1e9)])
def test_the_deadline_says_which_ranks_stopped_and_no_clock_of_the_result(
    still_s: float, outcome: Outcome, started: float, finished: float
) -> None:
    evidence = evidence_for(config_of("sft", tp=2))
    _cut_off_all(evidence, "deadline")
    assert evidence.result is not None
    evidence.result = replace(evidence.result, started=started, finished=finished)
    waits(evidence, 0, "all_reduce", IN_CODE)
    waits(evidence, 1, None, IN_CODE)
    for ending in evidence.result.ranks:
        ending.still_s = still_s
    assert judge(evidence).outcome is outcome


@pytest.mark.parametrize(("still_s", "outcome"), [(60.0, Outcome.FAIL), (59.0, Outcome.ERROR)])
def test_on_a_busy_node_ranks_must_have_stopped_for_longer(still_s: float, outcome: Outcome) -> None:
    evidence = evidence_for(config_of("sft", tp=2))
    _cut_off_all(evidence, "deadline")
    assert evidence.result is not None
    evidence.result = replace(evidence.result, deadline_s=300.0)
    waits(evidence, 0, "all_reduce", IN_CODE)
    waits(evidence, 1, None, IN_CODE)
    for ending in evidence.result.ranks:
        ending.still_s = still_s
    assert judge(evidence).outcome is outcome


def test_a_native_crash_is_the_fault_of_the_code() -> None:
    evidence = evidence_for(config_of("sft", tp=2))
    _cut_off_all(evidence, "killed")
    assert evidence.result is not None
    evidence.result.ranks[1].exit_code = -11
    evidence.result.first_failure_rank = 1
    finding = the_only_finding(evidence, "ended")
    assert place_of(finding, "rank") == (1,)
    assert "signal 11" in finding.message


def test_a_rank_that_exits_without_an_exception_is_a_crash() -> None:
    evidence = evidence_for(config_of("sft", tp=2))
    _cut_off_all(evidence, "killed")
    assert evidence.result is not None
    evidence.result.ranks[0].exit_code = 3
    evidence.result.first_failure_rank = 0
    assert "exited with code 3" in the_only_finding(evidence, "ended").message


def test_what_a_cut_off_rank_could_not_record_is_no_finding() -> None:
    evidence = evidence_for(config_of("sft", pp=2))
    [record] = at(evidence, pp=0)
    cut_off(record, "raised")
    record.failure = Failure(type="RuntimeError", message="boom", traceback="", time=5.0)
    the_only_finding(evidence, "ended")


def test_the_exception_of_a_rank_that_lost_its_peer_is_a_consequence() -> None:
    evidence = evidence_for(config_of("sft", tp=2))
    _cut_off_all(evidence, "raised")
    evidence.records[0].failure = Failure(
        type="RuntimeError", message="[gloo] Connection closed by peer [127.0.0.1]:1234", traceback="", time=1.0
    )
    evidence.records[1].failure = Failure(type="KeyError", message="'cu_seqlens'", traceback="", time=2.0)
    finding = the_only_finding(evidence, "ended")
    assert place_of(finding, "rank") == (1,)
    assert "KeyError" in finding.message


def test_a_crash_outranks_the_earlier_exception_of_its_peer() -> None:
    evidence = evidence_for(config_of("sft", tp=2))
    _cut_off_all(evidence, "killed")
    assert evidence.result is not None
    evidence.result.first_failure_rank = 0
    evidence.records[0].ended = "raised"
    evidence.records[0].failure = Failure(type="RuntimeError", message="Connection reset by peer", traceback="", time=1)
    evidence.result.ranks[1].exit_code = -6
    assert place_of(the_only_finding(evidence, "ended"), "rank") == (1,)


def test_a_hang_says_which_ranks_wait_where() -> None:
    evidence = evidence_for(config_of("sft", tp=2, cp=2))
    _cut_off_all(evidence, "deadline")
    assert evidence.result is not None
    for rank, name in enumerate(("broadcast", "broadcast", "barrier", None)):
        waits(evidence, rank, name, IN_CODE)
    message = the_only_finding(evidence, "ended").message
    assert "hang in broadcast (ranks 0, 1) and barrier (rank 2) at step 0" in message


def test_ranks_that_the_parent_ended_are_not_the_cause() -> None:
    evidence = evidence_for(config_of("sft", tp=2))
    _cut_off_all(evidence, "killed")
    assert evidence.result is not None
    evidence.result.ranks[0].exit_code, evidence.result.ranks[1].exit_code = -15, -6
    assert place_of(the_only_finding(evidence, "ended"), "rank") == (1,)


def test_a_crash_in_a_canary_leg_is_attributed_to_it_and_hides_no_finding_of_the_training() -> None:
    evidence = evidence_for(config_of("sft", tp=2))
    assert evidence.result is not None
    evidence.result.status = "failed"
    for record in evidence.records.values():
        record.ended = "raised"
        record.progress = Progress(leg="isolation", step=0, micro_batch=1, phase="forward")
        record.failure = Failure(type="RuntimeError", message="64 vs 32", traceback="", time=5.0 + record.rank)
        record.steps[1].grad_norm = 9.0
    findings = judge(evidence).findings
    assert [finding.check for finding in findings] == ["grad_norm", "ended"]
    assert "raised in the canary leg isolation, step 0, micro-batch 1, forward: RuntimeError" in findings[1].message
    assert place_of(findings[1], "rank", "leg") == (0, "isolation")


def test_a_rank_without_memory_is_its_own_class_with_what_was_tried_and_the_peak() -> None:
    evidence = evidence_for(config_of("sft", tp=2))
    _cut_off_all(evidence, "raised")
    message = "CUDA out of memory. Tried to allocate 20.00 GiB. GPU 1 has a total capacity of 139.00 GiB"
    for rank, record in evidence.records.items():
        lost = Failure(type="RuntimeError", message="[gloo] Connection closed by peer", traceback="", time=6.0)
        record.failure = (
            Failure(type="OutOfMemoryError", message=message, traceback="", time=5.0) if rank == 1 else lost
        )
        record.peak_memory_bytes, record.peak_reserved_bytes = 125 * 2**30, 130 * 2**30
        record.environment["memory_limit_bytes"] = str(139 * 2**30)
    finding = the_only_finding(evidence, "ended")
    assert finding.fault_class == fault_classes.OUT_OF_MEMORY
    start = "tried to allocate 20 GiB in one piece; peak 125 GiB, 130 GiB reserved, of 139 GiB: rank 1 "
    assert finding.message.startswith(start)
    assert place_of(finding, "rank", "tp") == (1, 1)
